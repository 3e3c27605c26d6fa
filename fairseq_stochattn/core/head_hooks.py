"""Hooks that receive the weights and outputs of every head of an attention module.

Measures and regularisers of heads use them. Without a hook nothing is kept or computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadOutputs:
    """One forward pass of one attention module."""

    weights: Tensor  # (B, H, T, S), at least fp32, before dropout
    outputs: Tensor  # (B, H, T, d): Z_i of every head, the input of the output projection
    padding: Tensor | None  # (B, T), True where the query is padding


class HasHeadHooks:
    """Mixin for attention modules that call ``head_hooks`` in their forward pass."""

    head_hooks: tuple[Callable[[HeadOutputs], None], ...] = ()

    def call_head_hooks(self, heads: HeadOutputs) -> None:
        for hook in self.head_hooks:
            hook(heads)


@contextmanager
def hook_heads(
    modules: Iterable[HasHeadHooks], hook: Callable[[HeadOutputs], None]
) -> Iterator[None]:
    """Within the block, ``hook`` is called with the heads of every forward pass of the modules."""
    previous = [(module, module.head_hooks) for module in modules]
    for module, hooks in previous:
        module.head_hooks = (*hooks, hook)
    try:
        yield
    finally:
        for module, hooks in previous:
            module.head_hooks = hooks
