"""Probabilities over the updates of a training, for each layer: of masks and of dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairseq_stochattn.errors import UsageError


@dataclass(frozen=True)
class PiecewiseLinear:
    """A probability over updates: linear between the given points, constant beyond them."""

    updates: Sequence[float]
    values: Sequence[float]

    def __call__(self, num_updates: int) -> float:
        return float(np.interp(num_updates, self.updates, self.values))


def parse_schedules(flag: str, spec: str, num_layers: int) -> list[PiecewiseLinear]:
    """``0.1``, or ``0:0.6,5000:0.2``, or one of these a layer, joined by ``/``."""
    parts = [parse_schedule(flag, part, spec) for part in spec.split("/")]
    if len(parts) not in (1, num_layers):
        raise UsageError(
            f"{flag}: '{spec}' has {len(parts)} schedules for {num_layers} layers; "
            "give one for all or one each"
        )
    return parts * num_layers if len(parts) == 1 else parts


def parse_schedule(flag: str, part: str, spec: str) -> PiecewiseLinear:
    try:
        points = [point.split(":") for point in part.split(",")]
        if len(points) == 1 and len(points[0]) == 1:
            points = [["0", *points[0]]]
        updates, values = zip(*((float(t), float(p)) for t, p in points), strict=True)
    except ValueError:
        raise UsageError(
            f"{flag}: '{spec}' is no probability such as 0.1, no points update:probability "
            "such as 0:0.6,5000:0.2, nor several of these joined by /"
        ) from None
    if not all(0 <= p < 1 for p in values):
        raise UsageError(f"{flag}: probabilities are at least 0 and below 1, not '{part}'")
    if any(later <= earlier for earlier, later in pairwise(updates)):
        raise UsageError(f"{flag}: the updates of '{part}' do not increase")
    return PiecewiseLinear(updates, values)
