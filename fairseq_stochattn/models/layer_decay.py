"""Layer-wise learning-rate decay: of L layers, layer l learns with lr · decay^(L−l).

Heads and what layers share learn with lr itself, the embeddings as layer 0. Parameters carry their
factor as fairseq's composite optimizer reads it, in ``optim_overrides``, which the fp32 copies of
fp16 training keep. For all other optimizers the parameter groups are split by factor
while a step is taken and only then: schedulers, logs and checkpoints know one learning rate.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim.composite import CompositeOptimizer
from torch import nn

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.hosts import attention_layers

RATES = ("lr", "lr_old")  # options of a parameter group; the second is nag's memory of the first


@dataclass
class LayerDecayConfig(FairseqDataclass):
    layer_lr_decay: float = field(
        default=1.0,
        metadata={
            "help": "factor of the learning rate from each layer to the one below it, down to the "
            "embeddings; the top layer and the heads have the full rate (ELECTRA fine-tunes at 0.8)"
        },
    )


def mark_layers(encoder: nn.Module, config: Namespace) -> None:
    """Give the parameters of an encoder their factors."""
    decay = config.layer_lr_decay
    if not 0 < decay <= 1:
        raise UsageError(f"--layer-lr-decay must be above 0 and at most 1, not {decay}")
    if decay == 1:
        return
    layers = attention_layers(encoder)
    for below, layer in enumerate(reversed(layers)):
        _mark(layer, decay**below)
    for name, module in encoder.named_children():
        if "embed" in name:
            _mark(module, decay ** len(layers))


def _mark(module: nn.Module, factor: float) -> None:
    for parameter in module.parameters():
        parameter.optim_overrides = {"optimizer": {"lr_scale": factor}}


def factor_of(parameter: torch.Tensor) -> float:
    overrides = getattr(parameter, "optim_overrides", {})
    return overrides.get("optimizer", {}).get("lr_scale", 1.0)


def follow_marks(task: Any, model: nn.Module) -> None:
    """Let the task take its steps with the rates that the model's parameters ask for."""
    step = getattr(task, "optimizer_step", None)
    if getattr(step, "follows_marks", False) or all(factor_of(p) == 1 for p in model.parameters()):
        return

    @wraps(step)
    def optimizer_step(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(optimizer, "has_flat_params", False):
            raise UsageError(
                "--layer-lr-decay needs parameters that are still apart: "
                "add --fp16-no-flatten-grads, or use --memory-efficient-fp16 or --amp"
            )
        with rates_by_factor(optimizer.optimizer):
            step(optimizer, *args, **kwargs)

    optimizer_step.follows_marks = True
    task.optimizer_step = optimizer_step


@contextmanager
def rates_by_factor(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within, every parameter group is split by factor, each part with its own learning rate."""
    if isinstance(optimizer, CompositeOptimizer):
        yield  # it has built an optimizer a factor by itself
        return
    whole = optimizer.param_groups
    parts = [_split(group) for group in whole]
    optimizer.param_groups = [part for split in parts for part in split.values()]
    try:
        yield
    finally:
        optimizer.param_groups = whole
        for group, split in zip(whole, parts, strict=True):
            # Some optimizers count their steps in the group.
            factor, part = next(iter(split.items()))
            options = {name: value for name, value in part.items() if name != "params"}
            group.update(_scaled(options, 1 / factor))


def _split(group: dict[str, Any]) -> dict[float, dict[str, Any]]:
    """A parameter group as one group a factor, the largest first."""
    apart = defaultdict(list)
    for parameter in group["params"]:
        apart[factor_of(parameter)].append(parameter)
    return {
        factor: {**_scaled(group, factor), "params": apart[factor]}
        for factor in sorted(apart, reverse=True)
    }


def _scaled(options: dict[str, Any], factor: float) -> dict[str, Any]:
    return {name: x * factor if name in RATES else x for name, x in options.items()}
