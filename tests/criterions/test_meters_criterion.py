"""Meters in training: when they are logged, what they cost, and that they change nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.logging import metrics
from fairseq.models.roberta import RobertaModel
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import runner
import sizes
from fairseq_stochattn.core.cut_noise import sampled_variation
from fairseq_stochattn.core.distributions import NOISE_BOUNDS
from fairseq_stochattn.core.meters import MeterSettings
from fairseq_stochattn.core.paired_batch import batch_is_paired
from fairseq_stochattn.criterions.asa import DIVERGENCE, AsaCriterion
from fairseq_stochattn.methods.alignment.meter import cloud_meters
from fairseq_stochattn.methods.asa.meter import divergence_ratio
from fairseq_stochattn.methods.attendout.meter import correlation
from fairseq_stochattn.methods.repulsive.meter import feature_meters, feature_sums

ROBERTA = (
    *(*sizes.ROBERTA, "--task", "sentence_prediction", "--num-classes", 5, "--max-positions", 32),
    *("--dropout", 0.2, "--attention-dropout", 0.1, "--batch-size", 16),
)
CASES = {
    "asa": (("--criterion", "asa"), {"divergence_ratio"}, set()),
    "alignment": (
        ("--criterion", "alignment", "--alignment", "ct"),
        {"mmd", "key_spread", "query_spread"},
        {"mmd", "key_spread", "query_spread"},
    ),
    "deterministic": (
        ("--criterion", "head_diversity", "--diversity-weight", 0.1),
        {"head_cosine", "feature_cosine", "dist_over_norm"},
        {"head_cosine", "feature_cosine", "dist_over_norm"},
    ),
}


def number(row: dict, name: str) -> float | None:
    """The logged number; None where an update did not log it."""
    return None if row.get(name) is None else float(row[name])


@pytest.mark.parametrize("method", CASES)
def test_meters_are_logged_every_n_updates_and_change_nothing(
    method: str, classification_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parameters are equal, bit for bit, to those of a run without meters in training.

    Only asa needs forward passes of its own: two, in each update that is measured.
    """
    flags, in_training, in_validation = CASES[method]
    passes: Counter[str] = Counter()
    forward = RobertaModel.forward

    def counted(self: RobertaModel, *args, **kwargs):
        passes["training" if self.training else "probe" if batch_is_paired() else "valid"] += 1
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(RobertaModel, "forward", counted)
    states, outputs, probes = [], [], []
    for interval, more in ((2, ("--disable-validation",)), (0, ())):
        folder = tmp_path / str(interval)
        given = ("--arch", f"roberta_{method}", *ROBERTA, *flags, "--meter-interval", interval)
        outputs.append(runner.train(classification_data, folder, *given, "--max-update", 4, *more))
        states.append(torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"])
        assert passes.pop("training") == 4
        probes.append(passes.pop("probe", 0))
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    # Two updates were measured. A training step takes as long as about three forward passes.
    assert probes == [2 * 2 if method == "asa" else 0, 0]
    assert 2 / (3 * MeterSettings().interval) < 0.01
    rows, others = (output.stats["train_inner"] for output in outputs)
    for name in in_training:
        values = [number(row, name) for row in rows]
        assert [value is None for value in values] == [False, True, False, True]
        assert all(number(row, name) is None for row in others)
    assert {f"valid_{x}" for x in in_validation} <= set(outputs[1].stats["valid"][-1])


def test_repulsion_around_a_plain_model_logs_the_cosine_of_heads(
    translation_data: Path, tmp_path: Path
) -> None:
    """With fairseq's own criterion, every --meter-interval updates."""
    flags = ("--arch", "transformer", *sizes.TRANSFORMER, "--criterion", "cross_entropy")
    optimizer = ("--optimizer", "repulsive", "--repulsive-base", "adam", "--meter-interval", 2)
    more = ("--max-update", 3, "--no-save", "--disable-validation")
    rows = runner.train(translation_data, tmp_path, *flags, *optimizer, *more).stats["train_inner"]
    values = [number(row, "head_cosine") for row in rows]
    assert values[1] is None
    assert -1 <= values[0] <= 1
    assert values[2] != values[0]


def test_the_ratio_of_several_ranks_and_batches_is_one_of_sums() -> None:
    criterion = type("Bound", (AsaCriterion,), {"wrapped_class": MaskedLmLoss})
    logs = [
        {f"{DIVERGENCE}masked": torch.tensor(3.0), f"{DIVERGENCE}random": torch.tensor(1.0)},
        {f"{DIVERGENCE}masked": torch.tensor(1.0), f"{DIVERGENCE}random": torch.tensor(1.0)},
    ]
    shared = {"loss": 1.0, "sample_size": 2, "ntokens": 2, "nsentences": 2}
    with metrics.aggregate(new_root=True) as found:
        criterion.reduce_metrics([{**shared, **log} for log in logs])
    assert found.get_smoothed_value("divergence_ratio") == 2


def test_meters_read_no_value_from_the_device() -> None:
    """With torch's fake tensors, which have no values, every read fails."""
    with FakeTensorMode():
        x = torch.empty(4, 2, 300, 8)
        padding = torch.empty(4, 300, dtype=torch.bool)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
        meters, count = cloud_meters(x, x, padding)
        found = [*meters, count, *feature_meters(feature_sums(x.transpose(1, 2), ~padding))]
        found.append(sampled_variation(x, NOISE_BOUNDS).sum())
        found.append(correlation(x[0, 0], x[0, 1]))
        found.append(divergence_ratio(x.sum(), x.sum()))
        assert all(value.dim() == 0 for value in found)


def test_intervals() -> None:
    assert [n for n in range(9) if MeterSettings(interval=4).due(n)] == [0, 4, 8]
    assert not MeterSettings(interval=0).due(0)
    with pytest.raises(ValueError, match="interval must not be negative"):
        MeterSettings(interval=-1)
