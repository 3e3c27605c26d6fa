"""What is known of the cells of one attention: queries, keys, and what must not be seen.

A cell is one (query, key) pair. Shapes: q (B, H, T, d), k (B, H, S, d), masks (B|1, 1, T|1, S).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from fairseq_stochattn.attention.doubling import batch_is_doubled

if TYPE_CHECKING:
    from fairseq_stochattn.attention.stack import AttentionStack

Given = TypeVar("Given")
Made = TypeVar("Made")


class Remembered(Generic[Given, Made]):
    """What was made of a thing last, for as long as that very thing comes again.

    Beam search has the same mask of the source at every step, an LSTM at every query. Nobody
    writes into a mask: who has another one has another tensor.
    """

    def __init__(self, make: Callable[[Given], Made]) -> None:
        self._make = make
        self._last: tuple[Given, Made] | None = None

    def __call__(self, given: Given) -> Made:
        if self._last is None or self._last[0] is not given:
            self._last = given, self._make(given)
        return self._last[1]


@dataclass
class Hidden:
    """Keys that are padding, and cells that must not be seen."""

    key_padding: Tensor | None = None  # (B, S), True at padding
    blocked: Tensor | None = None  # (B|1, 1, T|1, S), True where the query must not see the key
    _barrier: Tensor | None = field(default=None, repr=False)

    def barrier(self, dtype: torch.dtype) -> Tensor:
        """(B|1, 1, T|1, S): −inf where the query must not see the key, 0 elsewhere."""
        if self._barrier is None or self._barrier.dtype != dtype:
            zeros = torch.zeros_like(self.blocked, dtype=dtype)
            self._barrier = zeros.masked_fill_(self.blocked, float("-inf"))
        return self._barrier

    def rows(self, rows: slice) -> Hidden:
        def of(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.size(0) == 1 else x[rows]  # (1, …) is one for all

        return Hidden(of(self.key_padding), of(self.blocked))


def behind_padding(mask: Tensor | None) -> Hidden:
    """What a padding mask (B, S) hides: nothing, or those keys from every query."""
    if mask is None:
        return Hidden()
    padding = mask.bool()
    return Hidden(padding, opened(padding[:, None, None, :]))


def opened(blocked: Tensor) -> Tensor:
    """A row in which everything would be blocked is opened: its output is never used, and a softmax
    over nothing would be NaN. There is no head axis here, so this costs nothing."""
    return blocked & ~blocked.all(dim=-1, keepdim=True)


@dataclass
class Cells:
    """What a method may know about the logits it is handed.

    The logits a method sees are finite everywhere; cells that must not be attended are masked
    after the last method, so no method can make padding or the future visible.
    """

    q: Tensor  # (B, H, T, d), not scaled: 1/√d belongs to the logits
    k: Tensor  # (B, H, S, d)
    query_input: Tensor  # (T, B, C): what W_Q was applied to
    key_input: Tensor | None  # (S, B, C): what W_K was applied to; None where keys are cached
    query_padding: Tensor | None  # (B, T), True at padding; None where unknown or none
    hidden: Hidden
    stack: AttentionStack
    doubled: bool = field(default_factory=batch_is_doubled)  # the second half is under attack
    _valid: Tensor | None = field(default=None, repr=False)

    @property
    def key_padding(self) -> Tensor | None:
        """(B, S), True at padding."""
        return self.hidden.key_padding

    @property
    def blocked(self) -> Tensor | None:
        """(B|1, 1, T|1, S), True where the query must not see the key."""
        return self.hidden.blocked

    @property
    def valid(self) -> Tensor:
        """(B, 1, T, S): key no padding, query no padding, allowed by the causal mask.

        These are the cells that count; of a doubled batch those of the clean half.
        """
        if self._valid is None:
            batch, _, targets, _ = self.q.shape
            shape = (batch, 1, targets, self.k.size(2))
            valid = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.q.device)
            if self.blocked is not None:
                valid = valid & ~self.blocked
            if self.key_padding is not None:
                valid = valid & ~self.key_padding[:, None, None, :]
            if self.query_padding is not None:
                valid = valid & ~self.query_padding[:, None, :, None]
            if self.doubled:
                clean = torch.arange(batch, device=valid.device) < batch // 2
                valid = valid & clean[:, None, None, None]
            self._valid = valid.expand(shape)
        return self._valid

    def clean(self) -> Cells:
        """The rows that count: all, or the first half of a doubled batch."""
        return self._rows(slice(0, self.q.size(0) // 2)) if self.doubled else self

    def attacked(self) -> Cells:
        """The second half of a doubled batch."""
        return self._rows(slice(self.q.size(0) // 2, None))

    def _rows(self, rows: slice) -> Cells:
        padding = self.query_padding
        return replace(
            self,
            q=self.q[rows],
            k=self.k[rows],
            query_input=self.query_input[:, rows],
            key_input=None if self.key_input is None else self.key_input[:, rows],
            query_padding=None if padding is None else padding[rows],
            hidden=self.hidden.rows(rows),
            doubled=False,
            _valid=None,
        )

    def mask(self, logits: Tensor) -> Tensor:
        """The logits with −inf where the query must not see the key."""
        if self.blocked is None:
            return logits
        # Faster than to fill by a mask, forth and back: its gradient is the identity.
        return logits + self.hidden.barrier(logits.dtype)
