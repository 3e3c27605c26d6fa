"""Gathers the non-padding tokens of a batch into rows, and scatters rows back into a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.device import reading_is_free
from ...core.distributions import at_least_float


class TokenSet:
    """The non-padding tokens of a batch of queries or keys.

    ``mass`` holds the empirical distribution of every sentence (p_Q or p_K), which is uniform over
    the non-padding tokens.
    """

    def __init__(self, x: Tensor, padding: Tensor | None) -> None:
        """Take x (B, H, L, d) and padding (B, L), which is True at padding."""
        batch, _, length, _ = x.shape
        keep = x.new_ones((batch, length), dtype=torch.bool) if padding is None else ~padding
        self.present = keep.any(dim=1)  # (B,): True if the sentence has a non-padding token
        self.several = keep.sum(dim=1) > 1  # (B,): True if it has at least two
        # A sentence of padding only never enters a loss, but its numbers must be finite. A uniform
        # mass makes them so.
        keep = keep | ~self.present.unsqueeze(1)
        mass = at_least_float(keep.to(x.dtype))
        self.mass = (mass / mass.sum(dim=1, keepdim=True)).unsqueeze(1)  # (B, 1, L)
        # Positions of the tokens in a flat (L·B) array, the memory layout of fairseq's projections.
        # On a CPU, leaving padding out saves time. On a GPU, where counting the tokens would be a
        # wait, padding stays among the rows, with the mass 0.
        self.index = None
        self.kept: Tensor | None = None  # (L·B,): False at padding that stays among the rows
        if padding is not None and reading_is_free(x):
            self.index = keep.t().flatten().nonzero().squeeze(1)
        elif padding is not None:
            self.kept = keep.t().flatten()
        self.length, self.batch = length, batch
        self.count = length * batch if self.index is None else len(self.index)

    def subsample(self, x: Tensor, stride: int) -> Tensor:
        """Every ``stride``-th row of x, (B, H, L, d) → (n, H, d)."""
        rows = x.permute(2, 0, 1, 3)  # (L, B, H, d)
        if self.index is None:
            return rows.flatten(0, 1)[::stride]
        index = self.index[::stride]
        return rows[index // self.batch, index % self.batch]

    def subsampled_weights(self, rows: Tensor, stride: int) -> Tensor:
        """1 at tokens and 0 at padding, (n,), for the ``rows`` that ``subsample`` returned."""
        if self.kept is None:
            return rows.new_ones(len(rows))
        return self.kept[::stride].to(rows.dtype)

    def token_weights(self, present: Tensor) -> Tensor:
        """The mass of every token, (N,), or 0 if ``present`` (B,) is False for its sentence."""
        mass = (self.mass.squeeze(1) * present.unsqueeze(1)).t().flatten()  # (L·B,)
        return mass if self.index is None else mass[self.index]

    def unpack(self, rows: Tensor) -> Tensor:
        """Return rows (N, H, e) to a batch (B, H, L, e); padding, of mass 0, is 0 if left out."""
        if self.index is not None:
            padded = rows.new_zeros((self.length * self.batch, *rows.shape[1:]))
            rows = padded.index_copy(0, self.index, rows)
        return rows.unflatten(0, (self.length, self.batch)).permute(1, 2, 0, 3)


def pack(
    q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet, reverse: bool = False
) -> tuple[Tensor, list[int]]:
    """Return all non-padding queries followed by all such keys, (N, H, d), and both numbers.

    With ``reverse``, the gradients of q and k are negated.
    """
    flat = [x.permute(2, 0, 1, 3).flatten(0, 1) for x in (q, k)]  # (L·B, H, d) each
    rows = gather_rows(*flat, queries.index, keys.index, -1.0 if reverse else 1.0)
    return rows, [queries.count, keys.count]


class _GatherRows(torch.autograd.Function):
    """Concatenates rows of two tensors without intermediate copies."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, in_a: Tensor | None, in_b: Tensor | None, strength: float
    ) -> Tensor:
        ctx.indices, ctx.lengths, ctx.strength = (in_a, in_b), (len(a), len(b)), strength
        counts = [len(x if i is None else i) for x, i in ((a, in_a), (b, in_b))]
        rows = a.new_empty((sum(counts), *a.shape[1:]))
        for x, index, part in zip((a, b), ctx.indices, rows.split(counts), strict=True):
            if index is None:
                part.copy_(x)
            else:
                torch.index_select(x, 0, index, out=part)
        ctx.counts = counts
        return rows

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.strength != 1:
            grad_rows = grad_rows * ctx.strength
        grads = []
        for part, index, length in zip(
            grad_rows.split(ctx.counts), ctx.indices, ctx.lengths, strict=True
        ):
            if index is not None:
                part = part.new_zeros((length, *part.shape[1:])).index_copy_(0, index, part)
            grads.append(part)
        return *grads, None, None, None


def gather_rows(
    a: Tensor, b: Tensor, in_a: Tensor | None, in_b: Tensor | None, strength: float = 1.0
) -> Tensor:
    """Rows ``in_a`` of a, followed by rows ``in_b`` of b; an index of None selects all rows.

    No index may contain a row twice. The backward pass multiplies the gradient by ``strength``, so
    that −1 reverses it.
    """
    return _GatherRows.apply(a, b, in_a, in_b, strength)
