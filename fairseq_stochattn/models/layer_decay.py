"""Layer-wise learning-rate decay: of L layers, layer l has the learning rate lr · decay^(L−l).

The embeddings are layer 0. Classification heads, and parameters that layers share, have the full
rate lr. The factor of each parameter is stored in its attribute ``optim_overrides``, which
fairseq's composite optimizer reads and which fp16 training copies to the fp32 parameters. For all
other optimizers, parameter groups are split by factor only during a step, so that schedulers, logs
and checkpoints have one group with one learning rate.
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

from ..compat import UsageError
from .adapters import attention_layers

# The options of a parameter group that are multiplied by the factor. The optimizer nag stores the
# previous learning rate in lr_old.
RATES = ("lr", "lr_old")


@dataclass
class LayerDecayConfig(FairseqDataclass):
    layer_lr_decay: float = field(
        default=1.0,
        metadata={
            "help": "learning rate of each layer divided by that of the layer above it, down to "
            "the embeddings; the top layer and the heads have the full rate. ELECTRA's "
            "fine-tuning uses 0.8; 1 gives all layers the same rate"
        },
    )


def mark_layers(encoder: nn.Module, config: Namespace) -> None:
    """Set the learning-rate factor of every parameter of an encoder."""
    decay = config.layer_lr_decay
    if not 0 < decay <= 1:
        raise UsageError(f"--layer-lr-decay must be above 0 and at most 1, not {decay}")
    if decay == 1:
        return
    layers = attention_layers(encoder)
    for number, layer in enumerate(layers):  # the top layer last: it decides what layers share
        _mark(layer, decay ** (len(layers) - 1 - number))
    for name, module in encoder.named_children():
        if "embed" in name:
            _mark(module, decay ** len(layers))


def _mark(module: nn.Module, factor: float) -> None:
    for parameter in module.parameters():
        parameter.optim_overrides = {"optimizer": {"lr_scale": factor}}


def factor_of(parameter: torch.Tensor) -> float:
    """The learning-rate factor of a parameter, 1 by default."""
    overrides = getattr(parameter, "optim_overrides", {})
    return overrides.get("optimizer", {}).get("lr_scale", 1.0)


def apply_factors(task: Any, model: nn.Module) -> None:
    """Make ``task.optimizer_step`` use the learning-rate factors of the model's parameters."""
    step = getattr(task, "optimizer_step", None)
    if getattr(step, "applies_factors", False):
        return
    if all(factor_of(parameter) == 1 for parameter in model.parameters()):
        return

    @wraps(step)
    def optimizer_step(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(optimizer, "has_flat_params", False):
            raise UsageError(
                "--layer-lr-decay does not work with --fp16, which flattens all parameters into "
                "one: add --fp16-no-flatten-grads, or use --memory-efficient-fp16 or --amp"
            )
        with rates_by_factor(optimizer.optimizer):
            step(optimizer, *args, **kwargs)

    optimizer_step.applies_factors = True
    task.optimizer_step = optimizer_step


@contextmanager
def rates_by_factor(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within the block, parameter groups are split by factor, each with its own learning rate."""
    if isinstance(optimizer, CompositeOptimizer):
        yield  # this optimizer reads the factors itself
        return
    whole = optimizer.param_groups
    parts = [_split(group) for group in whole]
    optimizer.param_groups = [part for split in parts for part in split.values()]
    try:
        yield
    finally:
        optimizer.param_groups = whole
        for group, split in zip(whole, parts, strict=True):
            # Options are copied back because some optimizers store state, such as a step counter,
            # in the group.
            factor, part = next(iter(split.items()))
            options = {name: value for name, value in part.items() if name != "params"}
            group.update(_scaled(options, 1 / factor))


def _split(group: dict[str, Any]) -> dict[float, dict[str, Any]]:
    """Split a parameter group into one group per factor, the largest factor first."""
    by_factor = defaultdict(list)
    for parameter in group["params"]:
        by_factor[factor_of(parameter)].append(parameter)
    return {
        factor: {**_scaled(group, factor), "params": by_factor[factor]}
        for factor in sorted(by_factor, reverse=True)
    }


def _scaled(options: dict[str, Any], factor: float) -> dict[str, Any]:
    """The options of a parameter group with its learning rates times ``factor``."""
    return {name: x * factor if name in RATES else x for name, x in options.items()}
