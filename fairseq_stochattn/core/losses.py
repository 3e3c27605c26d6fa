"""Named losses: what methods compute beside the attention, with weight, schedule and reduction.

A method calls ``add_loss`` in its forward pass. A training loop collects the losses of all layers
once per batch. The objective depends only on the losses, not on who collects them:

    objective = task loss (a sum over ``sample_size`` targets) + Σ weight · reduced loss

| reduction    | contribution of a loss to the objective                                |
|--------------|------------------------------------------------------------------------|
| ``sum``        | Σ over layers of value                                                 |
| ``layer_mean`` | sample_size · Σ over layers of (value / count)                         |
| ``mean``       | sample_size · (Σ over layers of value) / (Σ over layers of count)      |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .schedule import Schedule

Reduction = Literal["sum", "layer_mean", "mean"]


@dataclass(frozen=True)
class NamedLoss:
    """One term of one layer.

    ``value`` is a sum over ``count`` items ((query, key) pairs, sentences, …); without a count it
    counts as one item. ``weight`` None makes it a measure: logged, never added.
    """

    value: Tensor
    weight: Schedule | float | None
    reduction: Reduction = "sum"
    count: Tensor | None = None

    def plus(self, other: NamedLoss) -> NamedLoss:
        """Both values and counts added; weight and reduction are the other's."""
        count = None
        if self.count is not None and other.count is not None:
            count = self.count + other.count
        return replace(other, value=self.value + other.value, count=count)

    def weighted(self, num_updates: int, training: bool) -> NamedLoss:
        """The same with the weight of this update; in eval with the full weight."""
        if not isinstance(self.weight, Schedule):
            return self
        weight = self.weight(num_updates) if training else self.weight.final
        return replace(self, weight=weight)

    def reduced(self, sample_size: Any) -> Tensor:
        """The value on the scale of the task loss, a sum over ``sample_size`` targets."""
        if self.reduction == "sum":
            return self.value
        count = 1 if self.count is None else self.count.clamp(min=1)
        return self.value / count * sample_size


class HasLosses:
    """Mixin for modules that store named losses during a forward pass."""

    losses: dict[str, NamedLoss]
    num_updates: int
    training: bool


def take_losses(model: nn.Module) -> Iterator[tuple[str, NamedLoss]]:
    """Yield all losses that the methods of ``model`` stored, and clear them.

    The weight of each is that of the present update, in eval mode the final one.
    """
    for module in model.modules():
        if isinstance(module, HasLosses) and module.losses:
            for name, loss in module.losses.items():
                yield name, loss.weighted(module.num_updates, module.training)
            module.losses = {}


def pool_layers(losses: Iterable[tuple[str, NamedLoss]]) -> Iterator[tuple[str, NamedLoss]]:
    """Join the layers of losses with reduction ``mean``; all others stay one per layer."""
    pooled: dict[str, NamedLoss] = {}
    for name, loss in losses:
        if loss.reduction != "mean":
            yield name, loss
        else:
            pooled[name] = pooled[name].plus(loss) if name in pooled else loss
    yield from pooled.items()


def weighted_sum(
    losses: Iterable[tuple[str, NamedLoss]], sample_size: Any
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The sum of all weighted losses (None if there are none), and every term for the log.

    The log has ``<name>``, summed over layers, and ``<name>_weight`` times ``sample_size``.
    """
    total: Tensor | None = None
    log: dict[str, Tensor] = {}
    for name, loss in pool_layers(losses):
        term = loss.reduced(sample_size)
        log[name] = log.get(name, 0.0) + term.detach()
        if loss.weight is None:
            continue
        log[f"{name}_weight"] = torch.as_tensor(loss.weight * sample_size)
        # Also with weight 0, before a schedule starts: DistributedDataParallel waits for a
        # gradient of every parameter, and some parameters have no other loss.
        total = loss.weight * term if total is None else total + loss.weight * term
    return total, log


_collection: object | None = None


@contextmanager
def collecting_losses() -> Iterator[None]:
    """Around the forward passes of one batch whose losses will be collected.

    Within it, methods store their losses in eval mode too, and the losses of several forward
    passes (one per option of a multiple choice) add up.
    """
    global _collection
    previous, _collection = _collection, object()
    try:
        yield
    finally:
        _collection = previous


def current_collection() -> object | None:
    """A token of the surrounding ``collecting_losses`` block, None outside of one."""
    return _collection
