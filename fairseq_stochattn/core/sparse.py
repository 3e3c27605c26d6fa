"""Products with sparse rows, such as bags of words, without a dense matrix of all features."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SparseRows(nn.Module):
    """A constant sparse matrix (N, C) by rows. It moves with a model, but is not saved.

    Row i has the entries ``values[starts[i]:starts[i + 1]]`` in the columns of the same slice.
    """

    def __init__(self, starts: Tensor, columns: Tensor, values: Tensor, width: int) -> None:
        super().__init__()
        self.width = width
        rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
        # The same entries by columns, for the gradient of the weight.
        by_column = (columns * (len(starts) - 1) + rows).argsort()
        column_starts = torch.bincount(columns, minlength=width).cumsum(0)
        tensors = {
            "starts": starts,
            "columns": columns,
            "values": values,
            "rows_by_column": rows[by_column],
            "column_starts": F.pad(column_starts, (1, 0)),
            "by_column": by_column,
        }
        for name, x in tensors.items():
            self.register_buffer(name, x, persistent=False)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def detach(self) -> SparseRows:
        return self

    def with_values(self, values: Tensor) -> SparseRows:
        """The same matrix with other entries, such as those that dropout kept."""
        other = copy(self)
        other._buffers = {**self._buffers, "values": values}
        return other

    def dense(self) -> Tensor:
        """The matrix as a dense tensor (N, C)."""
        rows = torch.repeat_interleave(
            torch.arange(len(self), device=self.starts.device), self.starts.diff()
        )
        out = self.values.new_zeros(len(self), self.width)
        return out.index_put((rows, self.columns), self.values, accumulate=True)

    def __deepcopy__(self, memo: dict) -> SparseRows:
        return self  # never changed, so copies of a model share it


class _SparseLinear(torch.autograd.Function):
    """x Wᵀ, as the sum of the columns of W that a row of x names."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: SparseRows) -> Tensor:
        ctx.x = x
        return _sums(weight.t(), x.columns, x.starts, x.values)  # (N, out)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        x = ctx.x
        values = x.values[x.by_column]
        grad = _sums(grad_out, x.rows_by_column, x.column_starts, values)  # (C, out)
        return grad.t(), None


def _sums(table: Tensor, index: Tensor, starts: Tensor, values: Tensor) -> Tensor:
    """Σ values·table[index] over every slice between two ``starts``, one row per slice."""
    return F.embedding_bag(
        index,
        table.contiguous(),
        starts,
        mode="sum",
        per_sample_weights=values.to(table.dtype),
        include_last_offset=True,
    )


def sparse_linear(x: SparseRows, weight: Tensor) -> Tensor:
    """x Wᵀ, (N, out), for sparse x (N, C) and weight (out, C). x has no gradient."""
    return _SparseLinear.apply(weight, x)
