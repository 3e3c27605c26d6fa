"""FreeLB and SMART in fairseq-train: every task, reduced precision, accumulation, two ranks."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import runner
import sizes
from fairseq_stochattn.methods import smart
from precision import PRECISIONS, SGD, assert_same_training, distance, one_length

CASES = {
    "translation": ("translation_data", ("--arch", "transformer_babn", *sizes.TRANSFORMER)),
    "lstm": ("translation_data", ("--arch", "lstm_deterministic", *sizes.LSTM)),
    "masked_lm": ("lm_data", ("--arch", "roberta_alignment", *sizes.ROBERTA, *sizes.MASKED_LM)),
    "electra": ("lm_data", ("--arch", "electra_toy", *sizes.ELECTRA, *sizes.REPLACED_TOKENS)),
    "sentences": (
        "classification_data",
        ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.CLASSIFICATION),
    ),
    "tags": ("tagging_data", ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.TAGGING)),
    "choice": ("choice_data", ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.CHOICE)),
}
FREELB = ("--criterion", "freelb", "--freelb-steps", 3, "--freelb-lr", 0.3, "--freelb-radius", 0.5)
SMART = ("--criterion", "smart", "--smart-weight", 3, "--smart-lr", 0.02, "--smart-radius", 0.02)
BOTH = {"freelb": FREELB, "smart": (*SMART, "--smart-noise", 0.01)}


@pytest.mark.parametrize("case", ["translation", "lstm", "masked_lm", "choice"])
def test_freelb_on_every_task(case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The perturbation increases the loss and stays within the radius."""
    fixture, flags = CASES[case]
    data = request.getfixturevalue(fixture)
    output = runner.train(data, tmp_path, *flags, *FREELB, "--max-update", 2, "--no-save")
    for row in output.stats["train_inner"]:
        assert float(row["adv_loss"]) > float(row["loss"])
        assert 0.3 < float(row["delta_norm"]) <= 0.5001
        assert float(row["objective"]) >= float(row["loss"])
    assert "valid_adv_loss" not in output.stats["valid"][-1]


@pytest.mark.parametrize("case", ["electra", "sentences", "tags", "choice"])
def test_smart_on_every_task(case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """objective = task loss + λ · SMART's smoothness loss + Σ weight · loss of the attention."""
    fixture, flags = CASES[case]
    data = request.getfixturevalue(fixture)
    flags = (*flags, *BOTH["smart"], "--max-update", 2, "--no-save")
    output = runner.train(data, tmp_path, *flags)
    for row in output.stats["train_inner"]:
        terms = [name.removesuffix("_weight") for name in row if name.endswith("_weight")]
        assert "smart" in terms
        extra = sum(float(row[term]) * float(row[f"{term}_weight"]) for term in terms)
        expected = float(row["loss"]) + extra / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=1e-3, abs=5e-3)
        assert float(row["smart"]) > 0
    assert "valid_smart" not in output.stats["valid"][-1]


@pytest.mark.parametrize(("name", "precision"), [("freelb", "fp16"), ("smart", "amp")])
def test_reduced_precision_equals_fp32(
    name: str, precision: str, translation_data: Path, tmp_path: Path
) -> None:
    """Every term of the first two updates is close to that of fp32."""
    flags = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, *BOTH[name])
    flags = (*flags, "--dropout", 0, "--batch-size", 64, "--max-update", 2, "--no-save")
    full = runner.train(translation_data, tmp_path, *flags)
    scaled = (*flags, *PRECISIONS[precision], "--fp16-init-scale", 4)
    reduced = runner.train(translation_data, tmp_path, *scaled)
    assert len(reduced.losses()) == 2
    terms = ("loss", "objective", "delta_norm", *(("adv_loss",) if name == "freelb" else ()))
    for one, other in zip(full.stats["train_inner"], reduced.stats["train_inner"], strict=True):
        for term in terms:
            assert float(other[term]) == pytest.approx(float(one[term]), rel=0.01), term
        if name == "smart":
            assert float(other["smart"]) == pytest.approx(float(one["smart"]), rel=0.1)


def fixed_noise(like: Tensor, not_padding: Tensor, random: object, deviation: float) -> Tensor:
    """Return noise (B, T, C) that is the same in every sentence and every batch."""
    wave = torch.arange(like[0].numel()).sin().view(1, *like.shape[1:])
    return deviation * wave * not_padding[:, :, None]


@pytest.mark.parametrize("name", BOTH)
def test_accumulating_two_batches_equals_one_double_batch(
    name: str, translation_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart, "normal_start", fixed_noise)
    data = one_length(translation_data, tmp_path)
    no_noise = ("--freelb-init", 0) if name == "freelb" else ()
    flags = (*SGD, *BOTH[name], *no_noise, "--max-update", 2)
    runner.train(data, tmp_path / "whole", *flags)
    runner.train(data, tmp_path / "halves", *flags, "--batch-size", 32, "--update-freq", 2)
    assert_same_training(tmp_path / "whole", tmp_path / "halves", data)
    runner.train(data, tmp_path / "plain", *SGD, "--max-update", 2)
    assert distance(tmp_path / "whole", tmp_path / "plain") > 1e-4


def test_two_ranks_equal_one_process(translation_data: Path, tmp_path: Path) -> None:
    """Two ranks on 64 copies of a sentence pair equal one process on 32: the seed is the same."""
    for split, count in (("half", 32), ("both", 64)):
        text = tmp_path / f"{split}-text"
        text.mkdir()
        words = (translation_data / "dict.src.txt").read_text().split()[::2]
        for part in ("train", "valid"):
            for side in ("src", "tgt"):
                (text / f"{part}.{side}").write_text(f"{' '.join(words[3:9])}\n" * count)
        runner.preprocess(
            *("-s", "src", "-t", "tgt", "--joined-dictionary"),
            *("--trainpref", text / "train", "--validpref", text / "valid"),
            *("--srcdict", translation_data / "dict.src.txt"),
            out=tmp_path / split,
        )
        shutil.rmtree(text)
    flags = (*SGD, *FREELB, "--batch-size", 32, "--max-update", 2)
    runner.train(tmp_path / "half", tmp_path / "one", *flags)
    runner.train_on_two_ranks(tmp_path / "both", tmp_path / "two", *flags)
    assert_same_training(tmp_path / "one", tmp_path / "two", tmp_path / "half", flags)


@pytest.mark.parametrize("criterion", ["freelb", "smart"])
def test_training_survives_layerdrop_of_all_layers(
    criterion: str, translation_data: Path, tmp_path: Path
) -> None:
    """If every decoder layer is skipped, the loss does not depend on the perturbed source."""
    drop = ("--encoder-layerdrop", 0.9, "--decoder-layerdrop", 0.9, "--max-update", 6, "--no-save")
    flags = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--criterion", criterion)
    output = runner.train(translation_data, tmp_path, *flags, *drop)
    assert len(output.losses()) == 6
    assert all(math.isfinite(loss) for loss in output.losses())
