"""Named losses: every criterion of ours adds what the methods left, each with its own weight."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY

import commands
import sizes
import zoo
from fairseq_stochattn.attention.method import Schedule, collect_losses, collecting_losses
from fairseq_stochattn.criterions.attention_losses import (
    WRAPPABLE,
    AttentionLosses,
    criterion_config,
)

SOURCES, TARGETS = zoo.sentences(9, 7, 4), zoo.sentences(8, 5, 3, seed=1)
TOY = ("--arch", "transformer_toy", "--criterion", "attention_losses", "--dropout", 0)


@pytest.mark.parametrize(
    ("schedule", "updates", "weight"),
    [
        (Schedule(0.5), 0, 0.5),
        (Schedule(0.5, start=10), 9, 0.0),
        (Schedule(0.5, start=10), 10, 0.5),
        (Schedule(0.5, start=10, warmup=4), 10, 0.0),
        (Schedule(0.5, start=10, warmup=4), 11, 0.125),
        (Schedule(0.5, start=10, warmup=4), 99, 0.5),
    ],
)
def test_schedule(schedule: Schedule, updates: int, weight: float) -> None:
    assert schedule(updates) == weight


def test_losses_count_valid_cells_only() -> None:
    """scale² per valid cell: every site, layer and head, no padding, no future."""
    model = zoo.build("transformer_toy", toy_scale=0.5).train()
    zoo.run(model, "transformer", SOURCES, TARGETS, left=True)
    left = [term for name, term in collect_losses(model) if name == "toy"]
    assert len(left) == 9  # three sites of three layers
    source, target = [9, 7, 4], [8, 5, 3]
    cells = sum(s * s + t * (t + 1) // 2 + t * s for s, t in zip(source, target, strict=True))
    total = sum(term.value.item() for term in left)
    assert total == pytest.approx(3 * 2 * cells * 0.25, rel=1e-5)


def test_losses_of_the_lstm_add_up_over_steps() -> None:
    model = zoo.build("lstm_toy", toy_scale=0.5).train()
    zoo.run(model, "lstm", SOURCES, TARGETS, left=True)
    ((_, toy), (_, scale)) = list(collect_losses(model))
    cells = sum(t * s for s, t in zip([9, 7, 4], [8, 5, 3], strict=True))
    assert toy.value.item() == pytest.approx(cells * 0.25, rel=1e-5)
    assert scale.weight is None


def test_state_lives_one_forward() -> None:
    model = zoo.build("transformer_toy").train()
    for _ in range(2):
        zoo.run(model, "transformer", SOURCES, TARGETS)
        stacks = [
            *model.encoder.attention_stacks.values(),
            *model.decoder.attention_stacks.values(),
        ]
        assert [stack.state["calls"] for stack in stacks] == [3, 3, 3]


def test_losses_of_all_options_add_up() -> None:
    """A multiple choice runs the model once an option; losses nobody collects are forgotten."""
    model = zoo.build("roberta_toy", toy_scale=0.5).train()
    first, second = zoo.sentences(9, 7), zoo.sentences(4, 3)

    def value(*batches: list[torch.Tensor]) -> float:
        with collecting_losses():
            for rows in batches:
                zoo.run(model, "roberta", rows, rows)
        return sum(loss.value.item() for name, loss in collect_losses(model) if name == "toy")

    zoo.run(model, "roberta", first, first)
    assert value(first, second) == pytest.approx(value(first) + value(second))


def test_uncollected_losses_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = zoo.build("roberta_toy").train()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            zoo.run(model, "roberta", SOURCES, TARGETS)
    warnings = [r.getMessage() for r in caplog.records if "did not collect" in r.getMessage()]
    assert len(warnings) == 1
    assert "toy left the loss toy" in warnings[0]


def test_objective_is_task_loss_plus_weighted_terms(translation_data: Path, tmp_path: Path) -> None:
    flags = (*TOY, *sizes.TRANSFORMER, "--toy-weight", 0.02, "--max-update", 3)
    output = commands.train(translation_data, tmp_path, *flags)
    for row in output.stats["train_inner"]:
        extra = float(row["toy_weight"]) * float(row["toy"]) / math.log(2)
        assert float(row["objective"]) == pytest.approx(float(row["loss"]) + extra, abs=2e-2)
        assert extra > 0.1
        assert float(row["toy_scale"]) == pytest.approx(6 * 0.5, rel=0.1)  # summed over six layers
    assert "objective" not in output.stats["valid"][-1]


def test_schedule_is_driven_by_updates(translation_data: Path, tmp_path: Path) -> None:
    flags = (*TOY, *sizes.TRANSFORMER, "--toy-warmup", 4, "--max-update", 6)
    output = commands.train(translation_data, tmp_path, *flags)
    found = [float(row["toy_weight"]) for row in output.stats["train_inner"]]
    assert found == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1], abs=1e-6)


def test_a_loss_of_weight_zero_still_reaches_its_parameters() -> None:
    """Before a schedule starts; a parameter without gradient would stall distributed training."""
    model = zoo.build("roberta_toy", toy_weight=0.0).train()
    zoo.run(model, "roberta", SOURCES, TARGETS)
    criterion = AttentionLosses.__new__(AttentionLosses)
    extra, log = criterion.named_losses(model, sample_size=7)
    extra.backward()
    scales = [p for name, p in model.named_parameters() if name.endswith("log_scale")]
    assert len(scales) == 3
    assert all(p.grad is not None and not p.grad.any() for p in scales)
    assert log["attention/toy_weight"] == 0


def test_the_loss_trains_the_method(translation_data: Path, tmp_path: Path) -> None:
    flags = (*TOY, *sizes.TRANSFORMER, "--toy-weight", 10, "--max-update", 20, "--lr", 0.05)
    commands.train(translation_data, tmp_path, *flags)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["model"]
    scales = [value.exp().max() for name, value in state.items() if name.endswith("log_scale")]
    assert len(scales) == 6
    assert max(scales) < 0.4


@pytest.mark.parametrize(
    ("data", "flags"),
    [
        ("translation_data", ("--arch", "transformer_toy", *sizes.TRANSFORMER)),
        ("lm_data", ("--arch", "transformer_lm_toy", *sizes.TRANSFORMER_LM)),
        ("lm_data", ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.MASKED_LM)),
        ("lm_data", ("--arch", "electra_toy", *sizes.ELECTRA, *sizes.REPLACED_TOKENS)),
        ("classification_data", ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.CLASSIFICATION)),
        ("tagging_data", ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.TAGGING)),
        ("choice_data", ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.CHOICE)),
    ],
    ids=[
        *("translation", "language_modeling", "masked_lm", "electra", "sentence_prediction"),
        *("tags", "choice"),
    ],
)
def test_wrapping_changes_nothing_of_the_task_criterion(
    data: str, flags: tuple, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The criterion follows from the task; its metrics stay, its flags keep their names."""
    folder = request.getfixturevalue(data)
    common = (*flags, "--dropout", 0, "--toy-weight", 0, "--max-update", 3, "--no-save")
    if "translation" in data:
        common = (*common, "--label-smoothing", 0.1, "--report-accuracy")
    found = []
    for criterion in (None, "attention_losses"):
        named = ["--criterion", criterion or "label_smoothed_cross_entropy"]
        if criterion is None and "translation" not in data:
            named = []
        found.append(commands.train(folder, tmp_path, *common, *named))
    own, wrapped = (output.stats["train_inner"] for output in found)
    for theirs, ours in zip(own, wrapped, strict=True):
        for key in ("loss", "nll_loss", "ppl", "accuracy", "mlm_loss", "rtd_loss"):
            assert theirs.get(key) == ours.get(key), key


def test_wrappable_criterions_keep_their_flags() -> None:
    config = CRITERION_DATACLASS_REGISTRY["attention_losses"]
    ours = set(config.__dataclass_fields__)
    for name in WRAPPABLE:
        assert set(criterion_config(name).__dataclass_fields__) <= ours
    assert {"ranking_head_name", "report_mcc", "label_smoothing"} <= ours
    assert AttentionLosses.__name__ == "AttentionLosses"


def test_methods_compose(translation_data: Path, tmp_path: Path) -> None:
    """A chain on chosen sites and layers, named on the command line of any of our archs."""
    flags = ("--arch", "transformer_deterministic", "--attention", "deterministic,toy")
    where = ("--attention-sites", "encoder,cross", "--attention-layers", "last")
    common = (*sizes.TRANSFORMER, "--criterion", "attention_losses", "--max-update", 2)
    output = commands.train(translation_data, tmp_path, *flags, *where, *common)
    assert float(output.stats["train_inner"][-1]["toy"]) > 0
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["model"]
    assert {name for name in state if name.endswith("log_scale")} == {
        "encoder.layers.1.self_attn.attention_methods.toy.log_scale",
        "decoder.layers.1.encoder_attn.attention_methods.toy.log_scale",
    }
