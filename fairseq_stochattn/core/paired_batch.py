"""Paired batches: a batch runs twice in one forward pass, a clean and an adversarial half.

The training loop pairs the batch, methods that attack change the second half only, and the losses
of all other methods count the clean half only (``AttentionContext.valid``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_paired: bool | None = None


@contextmanager
def paired_batch(paired: bool = True) -> Iterator[None]:
    """Around a forward pass whose batch is paired, or by ``False`` not paired this time."""
    global _paired
    previous, _paired = _paired, paired
    try:
        yield
    finally:
        _paired = previous


def batch_is_paired() -> bool:
    """Whether the present forward pass runs a paired batch."""
    return bool(_paired)


def no_pairing() -> bool:
    """Whether the forward pass runs outside of any ``paired_batch`` block."""
    return _paired is None


def map_rows(value: Any, copy: Callable[[Tensor], Tensor], size: int | None = None) -> Any:
    """Apply ``copy`` to every tensor of a nested batch that has one row per sentence.

    With ``size``, only tensors with that many rows are copied; everything else is kept.
    """
    if isinstance(value, dict):
        return {name: map_rows(part, copy, size) for name, part in value.items()}
    if isinstance(value, Tensor) and value.dim() and (size is None or len(value) == size):
        return copy(value)
    return value


def twice(value: Any) -> Any:
    """Every tensor of a batch, concatenated with itself: rows 1…B, then rows 1…B again."""
    return map_rows(value, lambda x: torch.cat([x, x]))


def clean_half(paired: Tensor) -> Tensor:
    """The first half of the rows: undoes ``twice``."""
    return paired[: paired.size(0) // 2]
