"""Numbers that change over the updates of a training run: loss weights and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .errors import InputError


@dataclass(frozen=True)
class Schedule:
    """A number over updates: linear between the given points, constant outside them."""

    updates: Sequence[float]
    values: Sequence[float]

    def __call__(self, num_updates: int) -> float:
        return float(np.interp(num_updates, self.updates, self.values))

    @property
    def final(self) -> float:
        """The value after the last point."""
        return float(self.values[-1])


def ramp(weight: float = 1.0, start: int = 0, warmup: int = 0) -> Schedule:
    """0 before update ``start``, then linearly up to ``weight`` over ``warmup`` updates."""
    if warmup > 0:
        return Schedule((start, start + warmup), (0.0, weight))
    if start > 0:
        return Schedule((start - 1, start), (0.0, weight))
    return Schedule((0,), (weight,))


def parse_schedules(spec: str, num_layers: int) -> list[Schedule]:
    """One schedule of probabilities per layer.

    ``spec`` is a probability (``0.1``), points ``update:probability`` (``0:0.6,5000:0.2``), or one
    of these per layer, joined by ``/``.
    """
    parts = [_parse_schedule(part, spec) for part in spec.split("/")]
    if len(parts) not in (1, num_layers):
        raise InputError(
            f"'{spec}' has {len(parts)} schedules for {num_layers} layers; "
            "give one for all layers or one per layer"
        )
    return parts * num_layers if len(parts) == 1 else parts


def _parse_schedule(part: str, spec: str) -> Schedule:
    try:
        points = [point.split(":") for point in part.split(",")]
        if len(points) == 1 and len(points[0]) == 1:
            points = [["0", *points[0]]]
        updates, values = zip(*((float(t), float(p)) for t, p in points), strict=True)
    except ValueError:
        raise InputError(
            f"'{spec}' is not a schedule: give a probability such as 0.1, points "
            "update:probability such as 0:0.6,5000:0.2, or one of these per layer joined by /"
        ) from None
    if not all(0 <= p < 1 for p in values):
        raise InputError(f"probabilities must be at least 0 and below 1, not '{part}'")
    if any(later <= earlier for earlier, later in pairwise(updates)):
        raise InputError(f"the updates of '{part}' must increase")
    return Schedule(updates, values)
