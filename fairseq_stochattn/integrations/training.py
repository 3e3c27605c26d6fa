"""Helpers for your own training loop: collect the methods' losses, apply adversarial masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.divergences import Divergence
from ..core.losses import take_losses, weighted_sum
from ..core.method import AttentionMethod
from ..core.paired_batch import paired_batch, twice
from ..methods.asa.attention import with_budget


def collect_losses(
    model: nn.Module,
    step: int | None = None,
    sample_size: float = 1.0,
    divergence: Tensor | None = None,
) -> Tensor:
    """The weighted sum of the losses that the methods stored in the last forward pass.

    The stored losses are cleared.

    Add the returned sum to a loss that is a mean over targets:
    ``task_loss + collect_losses(model, step)``. ``step`` is the number of updates so far, which
    drives schedules such as KL annealing. Losses with reduction ``sum`` are divided by
    ``sample_size``, the number of targets that your loss averages over. ``divergence`` is that of
    ``ASA``, whose budget of masked pairs depends on it; without it, the weight of the penalty on
    masks is the constant τ.
    """
    if step is not None:
        for module in model.modules():
            if isinstance(module, AttentionMethod):
                module.set_num_updates(step)
    losses = take_losses(model)
    if divergence is not None:
        losses = with_budget(model, losses, divergence)
    total, _ = weighted_sum(losses, sample_size)
    if total is None:
        return torch.zeros((), device=next(model.parameters()).device)
    return total / sample_size


def named_losses(model: nn.Module, sample_size: float = 1.0) -> dict[str, float]:
    """The losses and measures of the last forward pass by name, for logging.

    Unlike ``collect_losses``, it does not clear them.
    """
    held = [
        (module, dict(module.losses))
        for module in model.modules()
        if isinstance(module, AttentionMethod)
    ]
    _, log = weighted_sum(take_losses(model), sample_size)
    for module, losses in held:
        module.losses = losses
    return {name: float(value) / sample_size for name, value in log.items()}


def paired_forward(model: nn.Module, *inputs: Any, **named_inputs: Any) -> tuple[Tensor, Tensor]:
    """The outputs for a batch without and with adversarial masks (methods such as ``ASA``).

    The first axis of inputs and outputs must be the batch. The batch is doubled and runs in one
    forward pass; masks act on the second copy:

        clean, adversarial = paired_forward(model, x)
        d = divergence(clean, adversarial)
        loss = task_loss(clean) + d + collect_losses(model, step, divergence=d)
    """
    with paired_batch():
        output = model(*map(twice, inputs), **twice(named_inputs))
    output = getattr(output, "logits", output)
    clean, adversarial = (output[0] if isinstance(output, tuple) else output).chunk(2)
    return clean, adversarial


def divergence(
    clean: Tensor, adversarial: Tensor, symmetric: bool = False, clean_gradient: bool = False
) -> Tensor:
    """The mean KL(p_clean ‖ p_adversarial) from logits (…, classes).

    With ``symmetric``, KL(p_adversarial ‖ p_clean) is added. ``clean`` receives a gradient only
    with ``clean_gradient``.
    """
    return Divergence(symmetric, clean_gradient)(clean, adversarial).mean()
