"""fp16, AMP, gradient accumulation and two ranks give the same losses as one fp32 process."""

from __future__ import annotations

from pathlib import Path

import pytest

import runner
import sizes
from precision import PRECISIONS, SGD, assert_same_training, one_length


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("arch", ["transformer_deterministic", "transformer_toy", "lstm_toy"])
def test_reduced_precision(
    precision: str, arch: str, translation_data: Path, tmp_path: Path
) -> None:
    """The losses of the first updates equal those of fp32, and the model can generate."""
    size = sizes.LSTM if arch.startswith("lstm") else sizes.TRANSFORMER
    flags = ("--arch", arch, *size, "--dropout", 0, "--batch-size", 64, "--max-update", 5)
    flags = (*flags, "--criterion", "attention_losses", "--task-criterion", "cross_entropy")
    if arch.endswith("toy"):  # little noise, because the samples differ between precisions
        flags = (*flags, "--toy-scale", 1e-4)
    full = runner.train(translation_data, tmp_path / "full", *flags)
    scaled = (*flags, *PRECISIONS[precision], "--fp16-init-scale", 4)
    reduced = runner.train(translation_data, tmp_path / "reduced", *scaled)
    assert len(reduced.losses()) == 5
    assert full.losses()[-1] < full.losses()[0]
    assert reduced.losses() == pytest.approx(full.losses(), abs=0.03)
    text = runner.generate(translation_data, tmp_path / "reduced" / "checkpoint_last.pt").text
    assert "Generate test" in text


def test_accumulation_equals_one_large_batch(translation_data: Path, tmp_path: Path) -> None:
    """Two batches of 32 per update are compared with one of 64, on the same sentences.

    The optimizer is SGD, because Adam divides by gradients, and some are zero apart from rounding
    errors.
    """
    data = one_length(translation_data, tmp_path)
    runner.train(data, tmp_path / "whole", *SGD)
    runner.train(data, tmp_path / "halves", *SGD, "--batch-size", 32, "--update-freq", 2)
    assert_same_training(tmp_path / "whole", tmp_path / "halves", data)


# Methods with losses. Their networks receive gradients only from these losses.
WITH_LOSSES = {
    "disagreement": ("--criterion", "repulsive", "--diversity-weight", 3, "--log-dist"),
    "ct": ("--criterion", "alignment", "--arch", "transformer_alignment", "--alignment-weight", 3),
    # Almost nothing is masked, because each rank samples other masks. The training loop still runs.
    "attendout": (
        *("--criterion", "attendout", "--arch", "transformer_attendout", "--attendout-drop", 1e-6),
        *("--attendout-steps", 2, "--attendout-samples", 7, "--attendout-optimizer", "sgd"),
    ),
}


@pytest.mark.parametrize("losses", WITH_LOSSES)
def test_two_ranks_equal_one_process(losses: str, translation_data: Path, tmp_path: Path) -> None:
    data = one_length(translation_data, tmp_path)
    flags = (*SGD, *WITH_LOSSES[losses])
    runner.train(data, tmp_path / "one", *flags)
    runner.train_on_two_ranks(data, tmp_path / "two", *flags, "--batch-size", 32)
    assert_same_training(tmp_path / "one", tmp_path / "two", data, flags)
