"""Named losses: criterions add the losses of the methods, each with its own weight."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY

import runner
import sizes
import zoo
from fairseq_stochattn.core.losses import collecting_losses, take_losses, weighted_sum
from fairseq_stochattn.core.schedule import Schedule, ramp
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
        (ramp(0.5), 0, 0.5),
        (ramp(0.5, start=10), 9, 0.0),
        (ramp(0.5, start=10), 10, 0.5),
        (ramp(0.5, start=10, warmup=4), 10, 0.0),
        (ramp(0.5, start=10, warmup=4), 11, 0.125),
        (ramp(0.5, start=10, warmup=4), 99, 0.5),
    ],
)
def test_a_weight_grows_linearly_after_its_start(
    schedule: Schedule, updates: int, weight: float
) -> None:
    assert schedule(updates) == weight


def test_losses_count_only_valid_query_key_pairs() -> None:
    """The toy loss is scale² per valid (query, key) pair, without padding and future tokens."""
    model = zoo.build("transformer_toy", toy_scale=0.5).train()
    zoo.run(model, "transformer", SOURCES, TARGETS, left=True)
    losses = [loss for name, loss in take_losses(model) if name == "toy"]
    assert len(losses) == 9  # three sites of three layers
    source, target = [9, 7, 4], [8, 5, 3]
    pairs = sum(s * s + t * (t + 1) // 2 + t * s for s, t in zip(source, target, strict=True))
    total = sum(loss.value.item() for loss in losses)
    assert total == pytest.approx(3 * 2 * pairs * 0.25, rel=1e-5)


def test_losses_of_the_lstm_add_up_over_decoding_steps() -> None:
    model = zoo.build("lstm_toy", toy_scale=0.5).train()
    zoo.run(model, "lstm", SOURCES, TARGETS, left=True)
    ((_, toy), (_, scale)) = list(take_losses(model))
    pairs = sum(t * s for s, t in zip([9, 7, 4], [8, 5, 3], strict=True))
    assert toy.value.item() == pytest.approx(pairs * 0.25, rel=1e-5)
    assert scale.weight is None


def test_the_state_of_a_stack_is_reset_in_every_forward_pass() -> None:
    model = zoo.build("transformer_toy").train()
    for _ in range(2):
        zoo.run(model, "transformer", SOURCES, TARGETS)
        stacks = [
            *model.encoder.attention_stacks.values(),
            *model.decoder.attention_stacks.values(),
        ]
        assert [stack.state["calls"] for stack in stacks] == [3, 3, 3]


def test_losses_of_several_forward_passes_add_up_while_collecting() -> None:
    """Multiple choice runs the model once per option; losses left before are dropped."""
    model = zoo.build("roberta_toy", toy_scale=0.5).train()
    first, second = zoo.sentences(9, 7), zoo.sentences(4, 3)

    def value(*batches: list[torch.Tensor]) -> float:
        with collecting_losses():
            for rows in batches:
                zoo.run(model, "roberta", rows, rows)
        return sum(loss.value.item() for name, loss in take_losses(model) if name == "toy")

    zoo.run(model, "roberta", first, first)
    assert value(first, second) == pytest.approx(value(first) + value(second))


def test_uncollected_losses_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    model = zoo.build("roberta_toy").train()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            zoo.run(model, "roberta", SOURCES, TARGETS)
    warnings = [r.getMessage() for r in caplog.records if "was not collected" in r.getMessage()]
    assert len(warnings) == 1
    assert "toy left the loss toy" in warnings[0]


def test_objective_is_task_loss_plus_weighted_losses(
    translation_data: Path, tmp_path: Path
) -> None:
    flags = (*TOY, *sizes.TRANSFORMER, "--toy-weight", 0.02, "--max-update", 3)
    output = runner.train(translation_data, tmp_path, *flags)
    for row in output.stats["train_inner"]:
        extra = float(row["toy_weight"]) * float(row["toy"]) / math.log(2)
        assert float(row["objective"]) == pytest.approx(float(row["loss"]) + extra, abs=2e-2)
        assert extra > 0.1
        assert float(row["toy_scale"]) == pytest.approx(6 * 0.5, rel=0.1)  # summed over six layers
    assert "objective" not in output.stats["valid"][-1]


def test_the_weight_follows_the_number_of_updates(translation_data: Path, tmp_path: Path) -> None:
    flags = (*TOY, *sizes.TRANSFORMER, "--toy-warmup", 4, "--max-update", 6)
    output = runner.train(translation_data, tmp_path, *flags)
    weights = [float(row["toy_weight"]) for row in output.stats["train_inner"]]
    assert weights == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1], abs=1e-6)


def test_a_loss_with_weight_zero_gives_zero_gradients() -> None:
    """Parameters without any gradient would stall distributed training."""
    model = zoo.build("roberta_toy", toy_weight=0.0).train()
    zoo.run(model, "roberta", SOURCES, TARGETS)
    total, log = weighted_sum(take_losses(model), sample_size=7)
    total.backward()
    scales = [p for name, p in model.named_parameters() if name.endswith("log_scale")]
    assert len(scales) == 3
    assert all(p.grad is not None and not p.grad.any() for p in scales)
    assert log["toy_weight"] == 0


def test_the_loss_trains_the_method(translation_data: Path, tmp_path: Path) -> None:
    flags = (*TOY, *sizes.TRANSFORMER, "--toy-weight", 10, "--max-update", 20, "--lr", 0.05)
    runner.train(translation_data, tmp_path, *flags)
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
def test_wrapping_does_not_change_the_task_criterion(
    data: str, flags: tuple, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The wrapped criterion follows from the task; it logs the same metrics."""
    folder = request.getfixturevalue(data)
    common = (*flags, "--dropout", 0, "--toy-weight", 0, "--max-update", 3, "--no-save")
    if "translation" in data:
        common = (*common, "--label-smoothing", 0.1, "--report-accuracy")
    outputs = []
    for criterion in (None, "attention_losses"):
        named = ["--criterion", criterion or "label_smoothed_cross_entropy"]
        if criterion is None and "translation" not in data:
            named = []
        outputs.append(runner.train(folder, tmp_path, *common, *named))
    plain, wrapped = (output.stats["train_inner"] for output in outputs)
    for theirs, ours in zip(plain, wrapped, strict=True):
        for key in ("loss", "nll_loss", "ppl", "accuracy", "mlm_loss", "rtd_loss"):
            assert theirs.get(key) == ours.get(key), key


def test_wrapped_criterions_keep_their_flags() -> None:
    config = CRITERION_DATACLASS_REGISTRY["attention_losses"]
    ours = set(config.__dataclass_fields__)
    for name in WRAPPABLE:
        assert set(criterion_config(name).__dataclass_fields__) <= ours
    assert {"ranking_head_name", "report_mcc", "label_smoothing"} <= ours
    assert AttentionLosses.__name__ == "AttentionLosses"


def test_several_methods_in_one_model(translation_data: Path, tmp_path: Path) -> None:
    """Several methods on chosen sites and layers can be named with any of our archs."""
    flags = ("--arch", "transformer_deterministic", "--attention", "deterministic,toy")
    where = ("--attention-sites", "encoder,cross", "--attention-layers", "last")
    common = (*sizes.TRANSFORMER, "--criterion", "attention_losses", "--max-update", 2)
    output = runner.train(translation_data, tmp_path, *flags, *where, *common)
    assert float(output.stats["train_inner"][-1]["toy"]) > 0
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["model"]
    assert {name for name in state if name.endswith("log_scale")} == {
        "encoder.layers.1.self_attn.attention_methods.toy.log_scale",
        "decoder.layers.1.encoder_attn.attention_methods.toy.log_scale",
    }
