"""The objective does not depend on the criterion: every loss carries its weight and reduction."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from torch import Tensor, nn

import runner
import sizes
import zoo
from fairseq_stochattn.criterions.attention_losses import criterion_config

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 2), zoo.sentences(8, 5, 3, 2, seed=1)
# Every criterion of this package that wraps a task loss, with its own term switched off.
CRITERIONS: dict[str, dict[str, Any]] = {
    "attention_losses": {},
    "elbo": {},
    "alignment": {},
    "asa": {"asa_start": 10**6},
    "head_diversity": {"diversity_weight": 0.0},
    "repulsive": {"diversity_weight": 0.0},
    "freelb": {"freelb_steps": 1, "freelb_init": 0.0},
    "smart": {"smart_weight": 0.0},
    "attendout": {},
}
METHODS = {
    "babn": {"kl_weight": 0.3, "kl_anneal_updates": 10, "kl_reduction": "mean"},
    "babn, sum": {"kl_weight": 0.01, "kl_start": 2, "kl_reduction": "sum"},
    "bam": {"kl_weight": 0.3, "kl_anneal_updates": 10, "bam_k": 3.0},
    "alignment": {"alignment": "ct", "alignment_weight": 0.7, "alignment_warmup": 10},
}


def batch() -> dict[str, Any]:
    tokens = zoo.pad(SOURCES)
    inputs = {
        "src_tokens": tokens,
        "src_lengths": tokens.ne(zoo.PAD).sum(dim=1),
        "prev_output_tokens": zoo.pad(zoo.shift(TARGETS)),
    }
    count = sum(map(len, TARGETS))
    target = zoo.pad(TARGETS)
    return {"net_input": inputs, "target": target, "ntokens": count, "nsentences": len(target)}


def criterion(name: str) -> Any:
    config = {entry.name: entry.default for entry in fields(criterion_config(name))}
    config |= {"task_criterion": "cross_entropy", "sentence_avg": False, **CRITERIONS[name]}
    task = zoo.task()
    return CRITERION_REGISTRY[name].build_criterion(Namespace(**config), task)


def model_with(method: str, **more: Any) -> nn.Module:
    """A model with the method, alignment and a mask, so that every criterion accepts it."""
    name = method.split(",")[0]
    chain = ",".join(dict.fromkeys([name, "alignment", "bernoulli"]))
    flags = {"attention": chain, "alignment": "ct", "alignment_weight": 0.0}
    return zoo.build(f"transformer_{name}", **{**flags, **METHODS[method], **more})


def objective(name: str, model: nn.Module, training: bool) -> Tensor:
    torch.manual_seed(3)
    if name == "freelb":
        torch.manual_seed(3)
    model.train(training).set_num_updates(5)
    built = criterion(name)
    if name == "attendout":  # in training it adds the loss of a second model
        model.eval()
    loss, _, log = built(model, batch())
    assert "objective" in log
    return loss.detach()


@pytest.mark.parametrize("name", CRITERIONS)
@pytest.mark.parametrize("method", METHODS)
def test_the_objective_is_the_same_under_every_criterion(method: str, name: str) -> None:
    """In validation, where attention is the mean and schedules are at their end."""
    model = model_with(method)
    expected = objective("attention_losses", model, training=False)
    plain = objective("attention_losses", model_with(method, **no_losses(method)), training=False)
    assert (expected - plain).abs() > 0.1  # the loss of the method is there
    torch.testing.assert_close(objective(name, model, training=False), expected)


@pytest.mark.parametrize("name", ["elbo", "alignment", "asa", "head_diversity", "repulsive"])
@pytest.mark.parametrize("method", METHODS)
def test_the_objective_is_the_same_in_training(method: str, name: str) -> None:
    """In the middle of the schedules, with the same random numbers."""
    model = model_with(method)
    expected = objective("attention_losses", model, training=True)
    torch.testing.assert_close(objective(name, model, training=True), expected)


def no_losses(method: str) -> dict[str, float]:
    return {flag: 0.0 for flag in METHODS[method] if flag.endswith("_weight")}


@pytest.mark.parametrize("name", ["attention_losses", "elbo", "alignment"])
def test_the_flags_work_with_every_criterion(
    name: str, translation_data: Path, tmp_path: Path
) -> None:
    """Through fairseq-train: the KL has the weight --kl-weight under every criterion."""
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--alignment", "ct", "--dropout", 0)
    kl = ("--kl-weight", 0.02, "--kl-anneal-updates", 4, "--criterion", name, "--max-update", 5)
    output = runner.train(translation_data, tmp_path, *flags, *kl, "--no-save")
    weights = [float(row["kl_weight"]) for row in output.stats["train_inner"]]
    assert weights == pytest.approx([0, 0.005, 0.01, 0.015, 0.02])
