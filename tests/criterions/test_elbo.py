"""The criterion ``elbo`` through fairseq's commands: terms, weights, reductions, logs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import runner
import sizes
from fairseq_stochattn import compat
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.pretrained.export_fairseq import export
from precision import PRECISIONS

CASES = {
    "translation": ("translation_data", ("--arch", "transformer_babn", *sizes.TRANSFORMER)),
    "lstm": ("translation_data", ("--arch", "lstm_babn", *sizes.LSTM)),
    "language model": ("lm_data", ("--arch", "transformer_lm_bam", *sizes.TRANSFORMER_LM)),
    "masked_lm": ("lm_data", ("--arch", "roberta_babn", *sizes.ROBERTA, *sizes.MASKED_LM[:2])),
    "classification": (
        "classification_data",
        ("--arch", "roberta_bam", *sizes.ROBERTA, "--task", "sentence_prediction"),
    ),
}
MORE = {
    "masked_lm": ("--tokens-per-sample", 16, "--sample-break-mode", "none"),
    "classification": ("--num-classes", 5, "--max-positions", 32),
}
BABN = (*CASES["translation"][1], "--criterion", "elbo", "--dropout", 0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_task(
    case: str, reduction: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """objective = task loss + w·KL, elbo = −(nll + w·KL), on every task and in both reductions."""
    fixture, flags = CASES[case]
    flags = (*flags, *MORE.get(case, ()), "--dropout", 0, "--criterion", "elbo")
    weight = 0.2 if reduction == "mean" else 0.002
    kl = ("--kl-weight", weight, "--kl-reduction", reduction, "--kl-anneal-updates", 4)
    data = request.getfixturevalue(fixture)
    output = runner.train(data, tmp_path, *flags, *kl, "--max-update", 6, "--no-save")
    rows = output.stats["train_inner"]
    weights = [float(row["kl_weight"]) for row in rows]
    assert weights == pytest.approx([weight * min(1, n / 4) for n in range(6)], abs=1e-4)
    for row in rows:
        terms = {name: float(row[name]) for name in ("loss", "objective", "nll", "kl", "elbo")}
        extra = float(row["kl_weight"]) * terms["kl"]
        assert terms["kl"] > 0
        assert float(row["noise"]) > 0.05
        assert terms["elbo"] == pytest.approx(-(terms["nll"] + extra), rel=2e-3, abs=2e-3)
        expected = terms["loss"] + extra / math.log(2)
        assert terms["objective"] == pytest.approx(expected, rel=2e-3, abs=5e-3)
        # For classification fairseq logs nll_loss per token; elbo logs nll per sentence.
        bits = row["loss"] if case == "classification" else row.get("nll_loss", row["loss"])
        nats = float(bits) * math.log(2)
        assert terms["nll"] == pytest.approx(nats, abs=2e-2)
    valid = output.stats["valid"][-1]
    full = float(valid["valid_nll_sampled"]) + weight * float(valid["valid_kl"])
    assert float(valid["valid_elbo"]) == pytest.approx(-full, rel=1e-3)
    assert float(valid["valid_nll_sampled"]) != float(valid["valid_nll"])


def test_reductions_differ_by_the_number_of_pairs(translation_data: Path, tmp_path: Path) -> None:
    """With one batch and one layer, the sum is the mean times the number of pairs per target."""
    found = {}
    for reduction in ("mean", "sum"):
        flags = (*BABN, "--kl-reduction", reduction, "--kl-weight", 0, "--max-update", 1)
        flags = (
            *flags,
            "--attention-sites",
            "cross",
            "--attention-layers",
            "last",
            "--batch-size",
            1,
        )
        output = runner.train(translation_data, tmp_path / reduction, *flags, "--no-save")
        found[reduction] = float(output.stats["train_inner"][0]["kl"])
    # The batch is one sentence of at most ten tokens. A target token has two heads and one
    # (query, key) pair per source token; source and target are equally long.
    pairs = found["sum"] / found["mean"]
    assert pairs == pytest.approx(2 * round(pairs / 2), rel=1e-3)
    assert 2 * 2 <= round(pairs) <= 2 * 10


def test_the_kl_starts_at_its_update_and_shrinks(translation_data: Path, tmp_path: Path) -> None:
    """Before --kl-start the weight is 0; a large weight reduces the KL."""
    start = (*BABN, "--kl-start", 3, "--kl-anneal-updates", 0, "--kl-weight", 0.5)
    output = runner.train(translation_data, tmp_path / "a", *start, "--max-update", 5)
    weights = [float(row["kl_weight"]) for row in output.stats["train_inner"]]
    assert weights == [0, 0, 0, 0.5, 0.5]
    found = {}
    for weight in (0.0, 2.0):
        flags = (*BABN, "--kl-weight", weight, "--kl-anneal-updates", 0, "--max-update", 40)
        output = runner.train(translation_data, tmp_path / str(weight), *flags)
        found[weight] = float(output.stats["train_inner"][-1]["kl"])
    assert found[2.0] < 0.9 * found[0.0]


def test_flags_of_the_wrapped_criterion_keep_their_names(
    translation_data: Path, tmp_path: Path
) -> None:
    losses = {}
    for smoothing in (0.0, 0.3):
        flags = (*BABN, "--label-smoothing", smoothing, "--max-update", 1, "--no-save")
        row = runner.train(translation_data, tmp_path, *flags).stats["train_inner"][0]
        losses[smoothing] = float(row["loss"]), float(row["nll_loss"])
    assert losses[0.0][0] == pytest.approx(losses[0.0][1])
    assert losses[0.3][0] != losses[0.3][1]
    named = ("--task-criterion", "cross_entropy")
    output = runner.train(translation_data, tmp_path, *BABN, *named, "--max-update", 1)
    assert output.losses()[0] == pytest.approx(losses[0.0][0], abs=1e-3)


def test_tensorboard_has_the_terms(translation_data: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    flags = (*BABN, "--max-update", 2, "--tensorboard-logdir", logs)
    runner.train(translation_data, tmp_path / "run", *flags)
    for split in ("train_inner", "valid"):
        events = EventAccumulator(str(logs / split)).Reload()
        assert {"nll", "kl", "elbo", "noise"} <= set(events.Tags()["scalars"])


def test_validate_and_resume(translation_data: Path, tmp_path: Path) -> None:
    """fairseq-validate computes the ELBO too; a resumed run continues the schedule."""
    flags = (*BABN, "--kl-anneal-updates", 8, "--kl-weight", 0.8)
    runner.train(translation_data, tmp_path, *flags, "--max-update", 4)
    output = runner.validate(translation_data, tmp_path / "checkpoint_last.pt")
    row = output.stats["valid"][-1] if "valid" in output.stats else output.stats["validate"][-1]
    assert any(key.endswith("elbo") for key in row)
    output = runner.train(translation_data, tmp_path, *flags, "--max-update", 6)
    weights = [float(row["kl_weight"]) for row in output.stats["train_inner"]]
    assert weights == pytest.approx([0.4, 0.5])


def test_finetuning_starts_from_the_plain_model(translation_data: Path, tmp_path: Path) -> None:
    """Before the first step after --finetune-from-model, the mean attention is deterministic."""
    plain = ("--arch", "transformer", *sizes.TRANSFORMER, "--dropout", 0, "--max-epoch", 2)
    output = runner.train(translation_data, tmp_path / "plain", *plain, user_dir=None)
    expected = float(output.stats["valid"][-1]["valid_loss"])
    start = ("--finetune-from-model", tmp_path / "plain" / "checkpoint_last.pt", "--lr", 0)
    named = ("--task-criterion", "cross_entropy", "--max-update", 1, "--babn-sigma", 1e-12)
    output = runner.train(translation_data, tmp_path / "ours", *BABN, *named, *start)
    assert float(output.stats["valid"][-1]["valid_loss"]) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", ["translation", "lstm"])
def test_reduced_precision_learns(
    precision: str, case: str, translation_data: Path, tmp_path: Path
) -> None:
    """With fp16 and AMP all terms are finite, and the loss decreases as in fp32."""
    flags = (*CASES[case][1], "--criterion", "elbo", "--dropout", 0, "--max-update", 12)
    found = []
    for more in ((), (*PRECISIONS[precision], "--fp16-init-scale", 4)):
        output = runner.train(translation_data, tmp_path / str(len(more)), *flags, *more)
        found.append(output.losses())
        assert all(math.isfinite(float(row["kl"])) for row in output.stats["train_inner"])
    assert found[1][-1] < 0.95 * found[1][0]
    assert found[1][-1] == pytest.approx(found[0][-1], rel=0.05)


@pytest.mark.parametrize("arch", ["transformer_bam", "transformer_babn"])
def test_export_to_plain_fairseq(arch: str, translation_data: Path, tmp_path: Path) -> None:
    """If the mean is plain attention (σ = 0), the exported checkpoint has the same loss, and its
    criterion is the one that elbo wrapped."""
    flags = ("--arch", arch, *sizes.TRANSFORMER, "--criterion", "elbo", "--dropout", 0)
    more = ("--babn-sigma", 0, "--max-epoch", 2, "--label-smoothing", 0.1)
    output = runner.train(translation_data, tmp_path, *flags, *more)
    plain = tmp_path / "plain.pt"
    export(tmp_path / "checkpoint_last.pt", plain)
    saved = compat.load_checkpoint(str(plain))["cfg"]
    assert saved["criterion"]["_name"] == "label_smoothed_cross_entropy"
    assert saved["criterion"]["label_smoothing"] == 0.1
    assert not {"kl_weight", "task_criterion"} & set(saved["criterion"])
    found = runner.validate(translation_data, plain).stats["valid"][-1]
    assert "valid_elbo" not in found
    expected = float(output.stats["valid"][-1]["valid_loss"])
    assert float(found["valid_loss"]) == pytest.approx(expected, abs=2e-3)


def test_babn_with_sigma_does_not_export(translation_data: Path, tmp_path: Path) -> None:
    runner.train(translation_data, tmp_path, *BABN, "--max-update", 1)
    with pytest.raises(InputError, match="babn attention is not plain attention at test time"):
        export(tmp_path / "checkpoint_last.pt", tmp_path / "plain.pt")


def test_a_negative_weight_is_refused(translation_data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--kl-weight must not be negative"):
        runner.train(translation_data, tmp_path, *BABN, "--kl-weight", -1, "--max-update", 1)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--babn-beta", 0),
        ("--babn-rho", -1),
        ("--babn-k-min", 0.02),
        ("--babn-max-positions", 0),
        ("--bam-k", -2),
    ],
)
def test_bad_flags_are_refused(
    flag: str, value: float, translation_data: Path, tmp_path: Path
) -> None:
    arch = "transformer_bam" if "bam" in flag else "transformer_babn"
    more = ("--arch", arch, *sizes.TRANSFORMER, "--criterion", "elbo", flag, value)
    with pytest.raises(SystemExit, match=f"{flag} must"):
        runner.train(translation_data, tmp_path, *more, "--max-update", 1)
