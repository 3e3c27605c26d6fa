"""What the heads of an attention module computed, shown to whoever watches.

Measures and regularisers of heads read it within ``watching``; outside nothing is kept, and nothing
is computed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Heads:
    """One forward of one attention module."""

    weights: Tensor  # (B, H, T, S), at least fp32, before dropout
    outputs: Tensor  # (B, H, T, d): Z_i of every head, what the next projection is applied to
    padding: Tensor | None  # (B, T), True where the query is padding


class ShowsHeads:
    """Mixin over an attention module whose forward shows its heads to ``watchers``, if any."""

    watchers: tuple[Callable[[Heads], None], ...] = ()

    def show(self, heads: Heads) -> None:
        for see in self.watchers:
            see(heads)


@contextmanager
def watching(modules: Iterable[ShowsHeads], see: Callable[[Heads], None]) -> Iterator[None]:
    """Within, ``see`` is called with the heads of every forward of these modules."""
    before = [(module, module.watchers) for module in modules]
    for module, watchers in before:
        module.watchers = (*watchers, see)
    try:
        yield
    finally:
        for module, watchers in before:
            module.watchers = watchers
