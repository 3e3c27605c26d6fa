"""Meters: figures that say whether a method does what it exists for. They are never losses.

A method stores a meter by ``add_measure`` where ``meters_wanted`` is true: in evaluation, and in
training every so many updates, so that meters cost nothing visible. A meter is a tensor on the
device of the model and is read only when it is logged. Meters leave the training as it is: they
have no gradient, and they consume no random number that the training would have used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from .errors import require_not_negative
from .perturbation import replayed_randomness
from .settings import Settings, setting


@dataclass(frozen=True)
class MeterSettings(Settings):
    """Settings of all meters."""

    interval: int = setting(
        100,
        "measure in every N-th training update whether the method acts (see docs/meters.md); 0 "
        "means only in validation",
        flag="meter_interval",
    )

    def check(self) -> None:
        require_not_negative(self, "interval")

    def due(self, update: int) -> bool:
        """Whether to measure in update number ``update``, the first of which is 0."""
        return self.interval > 0 and update % self.interval == 0


_measuring = False


@contextmanager
def measuring(wanted: bool = True) -> Iterator[None]:
    """Within the block, the methods of a model store their meters, unless ``wanted`` is False."""
    global _measuring
    previous, _measuring = _measuring, wanted
    try:
        yield
    finally:
        _measuring = previous


def meters_wanted() -> bool:
    """Whether the present forward pass runs within a ``measuring`` block."""
    return _measuring


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Within the block, the model is in eval mode; afterwards every module is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def probing(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Around additional forward passes of a meter: eval mode, no gradients, own randomness.

    Afterwards torch's random state is that before the block. Yields a function that restores this
    state within the block, so that two passes draw the same numbers.
    """
    with eval_mode(model), torch.no_grad(), replayed_randomness() as replay:
        try:
            yield replay
        finally:
            replay()
