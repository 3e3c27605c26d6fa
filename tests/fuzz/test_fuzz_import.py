"""Importing a Hugging Face folder with one damaged file succeeds or fails with a one-line error."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from fairseq_stochattn.pretrained.families import FAMILIES
from fairseq_stochattn.pretrained.import_huggingface import import_folder, read_encoder
from mutations import ODD_VALUES, cases, damaged, edited, json_files, json_text, one_line_or_success

HIDDEN, INNER, POSITIONS = 4, 6, 9
SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "##a", "##b"]
IDS = {symbol: number for number, symbol in enumerate(SYMBOLS)}
CONFIG = {
    **{"model_type": "bert", "vocab_size": len(SYMBOLS), "hidden_size": HIDDEN},
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": INNER},
    **{"max_position_embeddings": POSITIONS, "hidden_act": "gelu", "pad_token_id": 0},
    **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12},
    **{"tie_word_embeddings": True, "position_embedding_type": "absolute", "is_decoder": False},
}
SPECIAL = {
    "cls_token": "[CLS]",
    "mask_token": {"content": "[MASK]", "lstrip": False},
    "do_lower_case": True,
}
ELECTRA = {**CONFIG, "model_type": "electra", "embedding_size": HIDDEN}
ROBERTA = {**CONFIG, "model_type": "roberta", "pad_token_id": 1}
FULL_IMPORT = 0.005  # share of the cases that also build a model, which takes 0.3 seconds each


def tensors() -> dict[str, torch.Tensor]:
    """The tensors of a BERT without a head, under Hugging Face's names."""
    sizes = {"word": len(SYMBOLS), "position": POSITIONS, "token_type": 2}
    found = {}
    for name in FAMILIES["bert"].parts[0].expand(layers=1, tied=True):
        rows = next((n for kind, n in sizes.items() if f".{kind}_embeddings" in name), HIDDEN)
        rows = INNER if "intermediate" in name else rows
        columns = INNER if "output.dense" in name and "attention" not in name else HIDDEN
        matrix = name.endswith("weight") and "LayerNorm" not in name
        found[name] = torch.ones(rows, columns) if matrix else torch.ones(rows)
    return found


def tokenizer_json() -> dict[str, Any]:
    from tokenizers import BertWordPieceTokenizer

    return json.loads(BertWordPieceTokenizer(dict(IDS)).to_str())


def pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


TENSORS = tensors()
SAFETENSORS = save(TENSORS, metadata={"format": "pt"})
HEADER_END = 8 + struct.unpack("<Q", SAFETENSORS[:8])[0]
HEADER = json.loads(SAFETENSORS[8:HEADER_END])
INDEX = {"metadata": {}, "weight_map": dict.fromkeys(TENSORS, "a.safetensors")}
VALID = {
    "config.json": json_text(CONFIG),
    "vocab.txt": "".join(f"{symbol}\n" for symbol in SYMBOLS).encode(),
    "special_tokens_map.json": json_text(SPECIAL),
    "model.safetensors": SAFETENSORS,
}


def with_header(header: Any) -> bytes:
    """A safetensors file with another header."""
    text = json_text(header)
    return struct.pack("<Q", len(text)) + text + SAFETENSORS[HEADER_END:]


def edited_header() -> st.SearchStrategy[bytes]:
    dtypes = ["F64", "BF16", "I64", "BOOL", "U8", "F8_E4M3", "F8_E5M2", "F4", "C64", "F16"]
    odd_dtypes = st.sampled_from(dtypes).map(
        lambda dtype: {
            name: {**entry, "dtype": dtype} if "dtype" in entry else entry
            for name, entry in HEADER.items()
        }
    )
    return st.one_of(edited(HEADER), odd_dtypes).map(with_header)


def odd_pickles() -> st.SearchStrategy[bytes]:
    odd = [*ODD_VALUES, torch.ones(()), torch.ones(3), torch.ones(4).to_sparse()]
    odd += [torch.ones(4, dtype=torch.complex64), torch.empty(4, 4, device="meta")]
    names = [*TENSORS, "bert.embeddings.word_embeddings.weight", "x", "x.gamma", 7, None]
    edits = st.dictionaries(st.sampled_from(names), st.sampled_from(odd), max_size=3)
    return st.one_of(edits.map(lambda changed: pickled({**TENSORS, **changed})), edits.map(pickled))


def files() -> st.SearchStrategy[dict[str, bytes | None]]:
    """Files to write in place of the valid ones; None removes a file."""

    def one(
        name: str, contents: st.SearchStrategy[bytes], **more: bytes | None
    ) -> st.SearchStrategy:
        return contents.map(lambda content: {**more, name: content})

    bare = {"model.safetensors": None}
    return st.one_of(
        one("config.json", json_files(CONFIG)),
        one("config.json", json_files(ELECTRA)),
        one("config.json", json_files(ROBERTA)),
        one("model.safetensors", damaged(SAFETENSORS, SAFETENSORS[:HEADER_END])),
        one("model.safetensors", edited_header()),
        one("model.safetensors.index.json", json_files(INDEX), **bare),
        one("pytorch_model.bin", damaged(pickled(TENSORS)), **bare),
        one("pytorch_model.bin", odd_pickles(), **bare),
        one("vocab.txt", damaged(VALID["vocab.txt"])),
        one("vocab.json", json_files(IDS), **{"vocab.txt": None}),
        one("tokenizer.json", json_files(tokenizer_json())),
        one("special_tokens_map.json", json_files(SPECIAL)),
    )


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    (folder / "source").mkdir()
    (folder / "source" / "a.safetensors").write_bytes(SAFETENSORS)
    return folder / "source"


def write(source: Path, changed: dict[str, bytes | None]) -> None:
    """Write the valid files with some of them replaced, and remove those of the last case."""
    for path in source.iterdir():
        if path.name != "a.safetensors" and path.name not in VALID:
            path.unlink()
    for name, content in {**VALID, **changed}.items():
        if content is None:
            (source / name).unlink(missing_ok=True)
        else:
            (source / name).write_bytes(content)


def arch_for(changed: dict[str, bytes | None]) -> str:
    config = changed.get("config.json") or b""
    return "electra_deterministic" if b'"electra"' in config else "roberta_deterministic"


def test_the_valid_folder_is_imported(source: Path) -> None:
    write(source, {})
    assert import_folder(source, source.parent / "valid", "roberta_deterministic")


@cases()
@given(changed=files())
def test_folder_with_a_damaged_file(source: Path, changed: dict[str, bytes | None]) -> None:
    write(source, changed)
    with one_line_or_success():
        encoder = read_encoder(source, arch_for(changed))
        encoder.vocabulary.dictionary()
        assert all(value.isfinite().all() for value in encoder.weights.values())


@cases(FULL_IMPORT)
@given(config=edited(CONFIG), symbols=edited(IDS))
def test_what_is_read_can_be_imported(source: Path, config: Any, symbols: Any) -> None:
    """A folder whose files are accepted gives a checkpoint, so the checks miss nothing."""
    out = source.parent / "out"
    write(source, {"config.json": json_text(config), "vocab.json": json_text(symbols)})
    (source / "vocab.txt").unlink()
    with one_line_or_success():
        import_folder(source, out, "roberta_deterministic", force=out.exists())
