"""Promise 4: fp16, AMP, accumulation and two ranks give the update of one fp32 process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import commands
import sizes

# Plain SGD where sums are compared: Adam divides by gradients that may be zero but for rounding.
MODEL = (
    *("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--dropout", 0),
    *("--batch-size", 64, "--max-update", 5, "--required-batch-size-multiple", 1),
)
SGD = (*MODEL, "--optimizer", "sgd", "--lr", 0.05, "--max-tokens", 1000)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    return {name: value.float() for name, value in state["model"].items()}


def distance(first: Path, second: Path) -> float:
    one, other = weights(first), weights(second)
    assert list(one) == list(other)
    return max((one[name] - other[name]).abs().max().item() for name in one)


def assert_same_training(first: Path, second: Path, data: Path, flags: tuple = SGD) -> None:
    """Equal to 1e-5, and not because training stood still."""
    still = first.parent / "still"
    commands.train(data, still, *flags, "--lr", 0, "--max-update", 1)
    assert distance(first, still) > 0.01
    assert distance(first, second) < 1e-5


PRECISIONS = {
    "fp16": ("--fp16", "--fp16-no-flatten-grads", "--on-cpu-convert-precision"),
    "memory-efficient-fp16": ("--memory-efficient-fp16", "--on-cpu-convert-precision"),
    "amp": ("--amp",),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("arch", ["transformer_deterministic", "transformer_toy", "lstm_toy"])
def test_reduced_precision(
    precision: str, arch: str, translation_data: Path, tmp_path: Path
) -> None:
    """The losses of the first updates are those of fp32, and the model generates."""
    size = sizes.LSTM if arch.startswith("lstm") else sizes.TRANSFORMER
    flags = ("--arch", arch, *size, "--dropout", 0, "--batch-size", 64, "--max-update", 5)
    flags = (*flags, "--criterion", "attention_losses", "--task-criterion", "cross_entropy")
    if arch.endswith("toy"):  # without noise: a sample in fp16 is another sample
        flags = (*flags, "--toy-scale", 1e-4)
    full = commands.train(translation_data, tmp_path / "full", *flags)
    scaled = (*flags, *PRECISIONS[precision], "--fp16-init-scale", 4)
    reduced = commands.train(translation_data, tmp_path / "reduced", *scaled)
    assert len(reduced.losses()) == 5
    assert full.losses()[-1] < full.losses()[0]
    assert reduced.losses() == pytest.approx(full.losses(), abs=0.03)
    text = commands.generate(translation_data, tmp_path / "reduced" / "checkpoint_last.pt").text
    assert "Generate test" in text


def test_accumulation_equals_one_double_batch(translation_data: Path, tmp_path: Path) -> None:
    """Two batches of 32 an update against one of 64, on the same sentences."""
    data = one_length(translation_data, tmp_path)
    commands.train(data, tmp_path / "whole", *SGD)
    commands.train(data, tmp_path / "halves", *SGD, "--batch-size", 32, "--update-freq", 2)
    assert_same_training(tmp_path / "whole", tmp_path / "halves", data)


# Losses of the attention on top of the task's own, with networks that only they reach.
WITH_LOSSES = {
    "disagreement": ("--criterion", "repulsive", "--diversity-weight", 3, "--log-dist"),
    "ct": ("--criterion", "alignment", "--arch", "transformer_alignment", "--alignment-weight", 3),
    # Masks follow the random state of a rank, so there are none; the game is played all the same.
    "attendout": (
        *("--criterion", "attendout", "--arch", "transformer_attendout", "--attendout-drop", 1e-6),
        *("--attendout-steps", 2, "--attendout-samples", 7, "--attendout-optimizer", "sgd"),
    ),
}


@pytest.mark.parametrize("losses", WITH_LOSSES)
def test_two_ranks_equal_one_process(losses: str, translation_data: Path, tmp_path: Path) -> None:
    data = one_length(translation_data, tmp_path)
    flags = (*SGD, *WITH_LOSSES[losses])
    commands.train(data, tmp_path / "one", *flags)
    commands.train_on_two_ranks(data, tmp_path / "two", *flags, "--batch-size", 32)
    assert_same_training(tmp_path / "one", tmp_path / "two", data, flags)


def one_length(translation_data: Path, tmp_path: Path) -> Path:
    """64 sentence pairs of one length: an epoch is one batch of 64 or two of 32."""
    text, out = tmp_path / "text", tmp_path / "data"
    text.mkdir()
    words = (translation_data / "dict.src.txt").read_text().split()[::2]
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 64), ("valid", 16)):
        for side in ("src", "tgt"):
            picks = torch.randint(0, 25, (count, 6), generator=generator).tolist()
            lines = [" ".join(words[i] for i in row) for row in picks]
            (text / f"{split}.{side}").write_text("\n".join(lines) + "\n")
    commands.preprocess(
        *("-s", "src", "-t", "tgt", "--joined-dictionary"),
        *("--trainpref", text / "train", "--validpref", text / "valid"),
        *("--srcdict", translation_data / "dict.src.txt"),
        out=out,
    )
    return out
