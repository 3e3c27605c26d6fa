"""A batch that is there twice in one forward: a clean half, and behind it one under attack.

The criterion doubles, methods that attack change the second half alone, and what is counted for the
losses of all other methods is the clean half (``Cells.valid``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_doubled: bool | None = None


@contextmanager
def doubled_batch(doubled: bool = True) -> Iterator[None]:
    """Around a forward whose batch is doubled, or not yet, by a criterion that knows attacks."""
    global _doubled
    before, _doubled = _doubled, doubled
    try:
        yield
    finally:
        _doubled = before


def batch_is_doubled() -> bool:
    return bool(_doubled)


def nobody_doubles() -> bool:
    """Whether the forward runs outside any criterion that doubles: no attack will ever come."""
    return _doubled is None


def twice(value: Any) -> Any:
    """A tensor, batch first, behind itself; everything else as it is."""
    return torch.cat([value, value]) if isinstance(value, Tensor) else value


def once(doubled: Tensor) -> Tensor:
    """The clean half of what ``twice`` made."""
    return doubled[: doubled.size(0) // 2]
