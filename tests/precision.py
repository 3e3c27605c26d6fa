"""Flags of reduced precision, and the distance between the weights of two training runs."""

from __future__ import annotations

from pathlib import Path

import torch

import runner
import sizes

MODEL = (
    *("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--dropout", 0),
    *("--batch-size", 64, "--max-update", 5, "--required-batch-size-multiple", 1),
)
SGD = (*MODEL, "--optimizer", "sgd", "--lr", 0.05, "--max-tokens", 1000)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The model's parameters in the last checkpoint of a run."""
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    return {name: value.float() for name, value in state["model"].items()}


def distance(first: Path, second: Path) -> float:
    """The largest difference between two runs over all parameters of their last checkpoints."""
    one, other = weights(first), weights(second)
    assert list(one) == list(other)
    return max((one[name] - other[name]).abs().max().item() for name in one)


def assert_same_training(first: Path, second: Path, data: Path, flags: tuple = SGD) -> None:
    """Two runs end with equal weights to 1e-5, and training has changed the weights."""
    untrained = first.parent / "untrained"
    runner.train(data, untrained, *flags, "--lr", 0, "--max-update", 1)
    assert distance(first, untrained) > 0.01
    assert distance(first, second) < 1e-5


PRECISIONS = {
    "fp16": ("--fp16", "--fp16-no-flatten-grads", "--on-cpu-convert-precision"),
    "memory-efficient-fp16": ("--memory-efficient-fp16", "--on-cpu-convert-precision"),
    "amp": ("--amp",),
}


def one_length(translation_data: Path, tmp_path: Path) -> Path:
    """Data of 64 sentence pairs of equal length: an epoch is one batch of 64 or two of 32."""
    text, out = tmp_path / "text", tmp_path / "data"
    text.mkdir()
    words = (translation_data / "dict.src.txt").read_text().split()[::2]
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 64), ("valid", 16)):
        for side in ("src", "tgt"):
            picks = torch.randint(0, 25, (count, 6), generator=generator).tolist()
            lines = [" ".join(words[i] for i in row) for row in picks]
            (text / f"{split}.{side}").write_text("\n".join(lines) + "\n")
    runner.preprocess(
        *("-s", "src", "-t", "tgt", "--joined-dictionary"),
        *("--trainpref", text / "train", "--validpref", text / "valid"),
        *("--srcdict", translation_data / "dict.src.txt"),
        out=out,
    )
    return out
