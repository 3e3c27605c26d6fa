"""The criterion asa through fairseq's commands: tasks, logs, ranks, precision, export."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import runner
import sizes
from fairseq_stochattn import compat
from fairseq_stochattn.commands import export
from fairseq_stochattn.methods.asa import attention
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter
from precision import PRECISIONS, SGD, assert_same_training, one_length

ASA = ("--criterion", "asa", "--dropout", 0)
ENCODER = ("--attention-dropout", 0)
# Task → corpus, backbone, flags, number of layers with masks.
TASKS = {
    "translation": ("translation_data", "transformer", sizes.TRANSFORMER, 4),
    "language_modeling": ("lm_data", "transformer_lm", sizes.TRANSFORMER_LM, 2),
    "adaptive": (
        "lm_data",
        "transformer_lm",
        (
            *sizes.TRANSFORMER_LM,
            *("--task-criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "10"),
            *("--ddp-backend", "legacy_ddp"),
        ),
        2,
    ),
    "masked_lm": ("lm_data", "roberta", (*sizes.ROBERTA, *sizes.MASKED_LM), 2),
    "electra": ("lm_data", "electra", (*sizes.ELECTRA, *sizes.REPLACED_TOKENS), 2),
    "classes": ("classification_data", "roberta", (*sizes.ROBERTA, *sizes.CLASSIFICATION), 2),
    "numbers": ("regression_data", "roberta", (*sizes.ROBERTA, *sizes.REGRESSION), 2),
    "tagging": ("tagging_data", "roberta", (*sizes.ROBERTA, *sizes.TAGGING), 2),
    "choice": ("choice_data", "roberta", (*sizes.ROBERTA, *sizes.CHOICE), 2),
}
PRETRAINING = ("masked_lm", "electra")


def train(task: str, method: str, request: pytest.FixtureRequest, save: Path, *more: object):
    fixture, backbone, flags, _ = TASKS[task]
    data = request.getfixturevalue(fixture)
    arch = ("--arch", f"{backbone}_{method}", *flags, *ASA)
    if backbone in ("roberta", "electra"):
        arch = (*arch, *ENCODER)
    return runner.train(data, save, *arch, "--batch-size", 16, *more)


@pytest.mark.parametrize("task", TASKS)
def test_every_task(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """objective = task loss + α·D + (α·D/ε)·share from --asa-start on, and only in training."""
    start = ("--asa-weight", 0.5, "--asa-start", 1, "--max-update", 3, "--no-save")
    start = (*start, "--asa-initial-share", 0.5, "--asa-budget", 0.2)
    output = train(task, "asa", request, tmp_path, *start)
    rows = output.stats["train_inner"]
    assert "asa" not in rows[0]
    assert float(rows[0]["masked_share"]) == 0
    for row in rows[1:]:
        assert float(row["asa_weight"]) == (25 if task == "electra" else 0.5)
        assert 0.2 < float(row["masked_share"]) < 0.6
        assert float(row["asa"]) >= 0
        assert ("asa_sentence" in row) == (task in PRETRAINING)
        by_layer = [
            float(v) for k, v in row.items() if k.startswith("masked_share_") and k[-1] in "01"
        ]
        assert len(by_layer) == TASKS[task][3]
        assert min(by_layer) <= float(row["masked_share"]) <= max(by_layer)
        terms = sum(
            float(row[name]) * float(row[f"{name}_weight"])
            for name in ("asa", "asa_sentence")
            if name in row
        )
        assert float(row["masked_share_weight"]) == pytest.approx(terms / 0.2, rel=2e-3, abs=1e-6)
        terms += float(row["masked_share"]) * float(row["masked_share_weight"])
        expected = float(row["loss"]) + terms / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=2e-3, abs=5e-3)
    assert not [name for name in output.stats["valid"][-1] if "asa" in name or "masked" in name]


def test_penalty_of_the_paper(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """τ is the weight of the masked share, or of the number of masked pairs of a sentence."""
    flags = ("--max-update", 2, "--no-save", "--asa-tau", 0.02, "--asa-initial-share", 0.3)
    share = train("classes", "asa", request, tmp_path, *flags).stats["train_inner"][0]
    assert float(share["masked_share_weight"]) == 0.02
    flags = (*flags, "--asa-penalty", "sum")
    row = train("classes", "asa", request, tmp_path, *flags).stats["train_inner"][0]
    assert "masked_share_weight" not in row
    assert row["masked_share"] == share["masked_share"]
    assert float(row["masked_pairs_weight"]) == 0.02
    assert float(row["masked_pairs"]) > 5  # of a sentence, in both layers
    terms = float(row["asa"]) + 0.02 * float(row["masked_pairs"])
    expected = float(row["loss"]) + terms / math.log(2)
    assert float(row["objective"]) == pytest.approx(expected, abs=5e-3)


def test_warm_up_and_kinds_of_divergence(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    flags = ("--max-update", 3, "--no-save", "--asa-warmup", 4, "--asa-initial-share", 0.5)
    rows = train("classes", "asa", request, tmp_path, *flags).stats["train_inner"]
    assert [float(row["asa_weight"]) for row in rows] == [0.25, 0.5, 0.75]
    both = ("--asa-divergence", "symmetric", "--asa-clean-gradient")
    other = train("classes", "asa", request, tmp_path, *flags, *both).stats["train_inner"]
    # The two directions of the KL between similar predictions are about equal.
    assert float(other[0]["asa"]) == pytest.approx(2 * float(rows[0]["asa"]), rel=0.2)


@pytest.mark.parametrize("task", ["translation", "electra", "choice"])
def test_without_a_mask_there_is_no_divergence(
    task: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Both halves have the same batch, in ELECTRA the same replaced tokens too; the training equals
    that with the task's own criterion."""
    flags = ("--bernoulli-share", 0, "--max-update", 3, "--no-save")
    output = train(task, "bernoulli", request, tmp_path, *flags)
    plain = ("--criterion", "attention_losses")
    expected = train(task, "bernoulli", request, tmp_path, *flags, *plain)
    assert [float(row["asa"]) for row in output.stats["train_inner"]] == pytest.approx(
        [0] * 3, abs=1e-4
    )
    assert output.losses() == pytest.approx(expected.losses(), abs=2e-3)


@pytest.mark.parametrize("method", ["bernoulli", "scheduled", "magnitude"])
def test_masks_without_an_adversary_have_no_penalty(
    method: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    row = train("classes", method, request, tmp_path, "--max-update", 2, "--no-save").stats
    row = row["train_inner"][-1]
    assert "masked_share_weight" not in row
    expected = float(row["loss"]) + float(row["asa"]) / math.log(2)
    assert float(row["objective"]) == pytest.approx(expected, abs=5e-3)


def test_on_top_of_babn(translation_data: Path, tmp_path: Path) -> None:
    """The KL keeps the weight and the reduction that elbo gives it."""
    flags = ("--arch", "transformer_babn", "--attention", "babn,asa", *sizes.TRANSFORMER, *ASA)
    flags = (*flags, "--asa-tau", 0.3)
    kl = ("--kl-weight", 0.01, "--kl-anneal-updates", 0, "--max-update", 2)
    output = runner.train(translation_data, tmp_path, *flags, *kl)
    for row in output.stats["train_inner"]:
        assert float(row["kl_weight"]) == 0.01
        terms = float(row["asa"]) + 0.3 * float(row["masked_share"]) + 0.01 * float(row["kl"])
        expected = float(row["loss"]) + terms / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=2e-3)
    elbo = (*flags[:-6], "--attention", "babn", "--criterion", "elbo", "--dropout", 0, *kl)
    alone = runner.train(translation_data, tmp_path / "alone", *elbo)
    first = [float(out.stats["train_inner"][0]["kl"]) for out in (output, alone)]
    assert first[0] == pytest.approx(first[1], rel=0.05)  # other random samples


NOISELESS = """import torch
import fairseq_stochattn.models
from fairseq_stochattn.methods.asa import attention

attention.logistic_noise = torch.zeros_like
"""


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks without noise, since two small batches would draw other noise than a large one."""
    monkeypatch.setattr(attention, "logistic_noise", torch.zeros_like)


def whole_batches(data: Path, save: Path) -> tuple:
    """Train on batches of 64 sentences and return the flags."""
    flags = (*SGD, "--criterion", "asa", "--arch", "transformer_asa", "--asa-weight", 5)
    # A budget depends on the divergence of a batch: halves of a batch have others than the whole.
    flags = (*flags, "--asa-tau", 0.3, "--asa-initial-share", 0.5, "--asa-lr-multiplier", 3)
    output = runner.train(data, save, *flags)
    assert 0.05 < float(output.stats["train_inner"][-1]["masked_share"]) < 0.8
    return flags


@pytest.mark.usefixtures("no_noise")
def test_accumulation_equals_one_double_batch(translation_data: Path, tmp_path: Path) -> None:
    data = one_length(translation_data, tmp_path)
    flags = whole_batches(data, tmp_path / "whole")
    runner.train(data, tmp_path / "halves", *flags, "--batch-size", 32, "--update-freq", 2)
    assert_same_training(tmp_path / "whole", tmp_path / "halves", data, flags)


@pytest.mark.usefixtures("no_noise")
def test_two_ranks_equal_one_process(translation_data: Path, tmp_path: Path) -> None:
    data = one_length(translation_data, tmp_path)
    flags = whole_batches(data, tmp_path / "one")
    plugin = tmp_path / "noiseless"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(NOISELESS)
    small = ("--batch-size", 32)
    runner.train_on_two_ranks(data, tmp_path / "two", *flags, *small, user_dir=plugin)
    assert_same_training(tmp_path / "one", tmp_path / "two", data, flags)


def test_reduced_precision_learns(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = {}
    for name, more in {"full": (), **PRECISIONS}.items():
        flags = ("--max-update", 6, "--no-save", *more, "--fp16-init-scale", 4)
        output = train("language_modeling", "asa", request, tmp_path / name, *flags)
        found[name] = [float(row["asa"]) for row in output.stats["train_inner"]]
        assert output.losses()[-1] < output.losses()[0]
        assert found[name] == pytest.approx(found["full"], rel=0.3, abs=1e-3)


def test_resuming_continues_exactly(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    whole = train("classes", "asa", request, tmp_path / "whole", "--max-update", 4)
    flags = ("--save-interval-updates", 2, "--validate-interval-updates", 100)
    train("classes", "asa", request, tmp_path / "parts", "--max-update", 2, *flags)
    rest = train("classes", "asa", request, tmp_path / "parts", "--max-update", 4)
    assert rest.losses() == whole.losses()[2:]
    shares = [[row["masked_share"] for row in out.stats["train_inner"]] for out in (whole, rest)]
    assert shares[1] == shares[0][2:]


def test_exported_checkpoints_have_no_adversary(lm_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "transformer_lm_asa", *sizes.TRANSFORMER_LM, *ASA, "--max-update", 2)
    runner.train(lm_data, tmp_path, *flags)
    trained, exported = tmp_path / "checkpoint_last.pt", tmp_path / "exported.pt"
    assert export.main([str(trained), str(exported)]) == 0
    before = compat.load_checkpoint(str(trained))["model"]
    after = compat.load_checkpoint(str(exported))["model"]
    assert any(is_plugin_parameter(name) for name in before)
    assert set(after) == {name for name in before if not is_plugin_parameter(name)}
    found = [
        runner.eval_lm(lm_data, path).text.split("Perplexity")[1] for path in (trained, exported)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--arch", "transformer_deterministic"), "this model masks nothing"),
        (("--arch", "transformer_asa", "--asa-tau", -1), "--asa-tau must not be negative"),
        (("--arch", "transformer_asa", "--asa-weight", -1), "--asa-weight must not be negative"),
        (("--arch", "transformer_asa", "--asa-budget", 0), "--asa-budget must be positive"),
        (("--arch", "transformer_asa", "--asa-lr-multiplier", 0), "--asa-lr-multiplier must be"),
    ],
)
def test_bad_flags_are_refused(
    flags: tuple, message: str, translation_data: Path, tmp_path: Path
) -> None:
    more = (*sizes.TRANSFORMER, "--criterion", "asa", "--max-update", 1)
    with pytest.raises(SystemExit, match=message):
        runner.train(translation_data, tmp_path, *flags, *more)
