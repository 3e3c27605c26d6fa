"""What a method sees of one attention layer: queries, keys, inputs and masks.

Shapes: q (B, H, T, d), k (B, H, S, d), masks (B|1, 1|H, T|1, S), for B sentences, H heads, T
queries, S keys and heads of width d. ``B|1`` means a dimension of size B, or of size 1 to
broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from .device import reading_is_free
from .paired_batch import batch_is_paired

if TYPE_CHECKING:
    from .stack import AttentionStack

# fairseq marks blocked keys in float masks by −inf, −1e8 or (fp16 encoders) −1e4.
BLOCKED_BELOW = -1e4

Input = TypeVar("Input")
Output = TypeVar("Output")


class CacheLast(Generic[Input, Output]):
    """Caches f(x) for the most recent x, compared by identity.

    Beam search passes the same source mask at every step, and an LSTM at every query. Masks are
    never modified in place, so the same tensor means the same mask.
    """

    def __init__(self, f: Callable[[Input], Output]) -> None:
        self._f = f
        self._last: tuple[Input, Output] | None = None

    def __call__(self, x: Input) -> Output:
        if self._last is None or self._last[0] is not x:
            self._last = x, self._f(x)
        return self._last[1]


@dataclass
class AttentionMask:
    """Which keys are padding, and which (query, key) pairs are blocked."""

    key_padding: Tensor | None = None  # (B, S), True at padding
    blocked: Tensor | None = None  # (B|1, 1|H, T|1, S), True where the query must not see the key
    _additive: Tensor | None = field(default=None, repr=False)
    # The valid pairs of the most recent layer, its query padding, and whether its batch was paired.
    _valid: tuple[Tensor, Tensor | None, bool] | None = field(default=None, repr=False)
    _count: Tensor | None = field(default=None, repr=False)

    def valid(self, query_padding: Tensor | None, paired: bool, like: Tensor) -> Tensor:
        """The pairs (B, 1, T, S) of ``AttentionContext.valid``, computed once for all layers.

        ``like`` is a (B, 1, T, S) tensor on the right device.
        """
        if self._valid is not None:
            valid, padding, was_paired = self._valid
            if padding is query_padding and was_paired == paired and valid.shape == like.shape:
                return valid
        valid = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=like.device)
        if self.blocked is not None:
            blocked = self.blocked
            if blocked.size(1) > 1:  # a mask per head: valid where any head sees the key
                blocked = blocked.all(dim=1, keepdim=True)
            valid = valid & ~blocked
        if self.key_padding is not None:
            valid = valid & ~self.key_padding[:, None, None, :]
        if query_padding is not None:
            valid = valid & ~query_padding[:, None, :, None]
        if paired:
            batch = like.size(0)
            clean = torch.arange(batch, device=like.device) < batch // 2
            valid = valid & clean[:, None, None, None]
        self._valid, self._count = (valid.expand(like.shape), query_padding, paired), None
        return self._valid[0]

    def count(self, valid: Tensor) -> Tensor:
        """The number of valid pairs, where ``valid`` is what the method of that name returned."""
        if self._valid is None or self._valid[0] is not valid:
            return valid.sum()
        if self._count is None:
            self._count = valid.sum()
        return self._count

    def additive(self, dtype: torch.dtype) -> Tensor:
        """The mask to add to logits: −inf at blocked pairs, 0 elsewhere."""
        if self._additive is None or self._additive.dtype != dtype:
            zeros = torch.zeros_like(self.blocked, dtype=dtype)
            self._additive = zeros.masked_fill_(self.blocked, float("-inf"))
        return self._additive

    def rows(self, rows: slice) -> AttentionMask:
        """The mask of some sentences of the batch."""

        def take(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.size(0) == 1 else x[rows]  # (1, …) is broadcast

        return AttentionMask(take(self.key_padding), take(self.blocked))


def mask_from_padding(padding: Tensor | None) -> AttentionMask:
    """The mask that blocks padding keys, (B, S), for every query."""
    if padding is None:
        return AttentionMask()
    padding = padding.bool()
    return AttentionMask(padding, unblock_empty_rows(padding[:, None, None, :]))


def mask_from_both(
    padding: Tensor | None, attn_mask: Tensor
) -> tuple[AttentionMask, Tensor | None]:
    """The mask of padding keys (B, S) and ``attn_mask`` (T, S), (B, T, S) or (B, H, T, S) together.

    Also returns the finite part of a float ``attn_mask``, to be added to the logits.
    """
    if attn_mask.dim() == 3:  # one mask per sentence, for all heads
        attn_mask = attn_mask.unsqueeze(1)
    bias, never = None, attn_mask.bool()
    if attn_mask.is_floating_point():
        never = attn_mask <= BLOCKED_BELOW
        bias = attn_mask.masked_fill(never, 0.0)
    blocked = never.view(-1, 1, *never.shape[-2:]) if never.dim() < 4 else never
    if padding is not None:
        padding = padding.bool()
        blocked = padding[:, None, None, :] | blocked
    return AttentionMask(padding, unblock_empty_rows(blocked)), bias


def unblock_empty_rows(blocked: Tensor) -> Tensor:
    """Unblock rows in which every key is blocked.

    The output of such a query is never used, and a softmax over nothing would be NaN.
    """
    return blocked & ~blocked.all(dim=-1, keepdim=True)


class MaskCache:
    """The mask of the most recent padding and attention mask, compared by identity.

    The layers of a stack get the same tensors, so they share one mask.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor | None, Tensor | None, AttentionMask, Tensor | None] | None = None

    def __call__(
        self, padding: Tensor | None, attn_mask: Tensor | None
    ) -> tuple[AttentionMask, Tensor | None]:
        """``mask_from_both``, or ``mask_from_padding`` and None if there is no attention mask."""
        last = self._last
        if last is None or last[0] is not padding or last[1] is not attn_mask:
            if attn_mask is None:
                mask, bias = mask_from_padding(padding), None
            else:
                mask, bias = mask_from_both(padding, attn_mask)
                # Without a finite part, as in a causal mask, nothing has to be added. On a GPU,
                # looking would be a wait.
                if bias is not None and reading_is_free(bias) and not bias.any():
                    bias = None
            last = self._last = padding, attn_mask, mask, bias
        return last[2:]


@dataclass
class AttentionContext:
    """What a method may read in addition to the logits.

    The logits are finite everywhere. Blocked pairs are masked after the last method, so no method
    can make padding or the future visible.
    """

    q: Tensor  # (B, H, T, d), not scaled: 1/√d is part of the logits
    k: Tensor  # (B, H, S, d)
    query_input: Tensor | None  # (T, B, C): the input of W_Q; None in graph layers
    key_input: Tensor | None  # (S, B, C): the input of W_K; None in graph layers, or if cached
    query_padding: Tensor | None  # (B, T), True at padding; None if unknown or no padding
    attention_mask: AttentionMask
    stack: AttentionStack
    paired: bool = field(default_factory=batch_is_paired)  # whether half of it is adversarial
    # Returns q and k with gradients that reach W_Q and W_K, but not their inputs; None if the layer
    # cannot compute them.
    projected: Callable[[], tuple[Tensor, Tensor]] | None = None
    _valid: Tensor | None = field(default=None, repr=False)

    @property
    def key_padding(self) -> Tensor | None:
        """(B, S), True at padding."""
        return self.attention_mask.key_padding

    @property
    def blocked(self) -> Tensor | None:
        """(B|1, 1|H, T|1, S), True where the query must not see the key."""
        return self.attention_mask.blocked

    @property
    def valid(self) -> Tensor:
        """(B, 1, T, S): True where neither query nor key is padding and the pair is not blocked.

        Losses are computed over these pairs. In a paired batch only the clean half is valid.
        """
        if self._valid is None:
            like = self.q[:, :1, :, :1].expand(-1, -1, -1, self.k.size(2))  # (B, 1, T, S)
            self._valid = self.attention_mask.valid(self.query_padding, self.paired, like)
        return self._valid

    @property
    def num_valid(self) -> Tensor:
        """The number of valid pairs, a scalar."""
        return self.attention_mask.count(self.valid)

    def clean_half(self) -> AttentionContext:
        """The rows that losses are computed over: all, or the first half of a paired batch."""
        return self._rows(slice(0, self.q.size(0) // 2)) if self.paired else self

    def adversarial_half(self) -> AttentionContext:
        """The second half of a paired batch."""
        return self._rows(slice(self.q.size(0) // 2, None))

    def _rows(self, rows: slice) -> AttentionContext:
        padding, projected = self.query_padding, self.projected
        inputs = self.query_input
        return replace(
            self,
            q=self.q[rows],
            k=self.k[rows],
            query_input=None if inputs is None else inputs[:, rows],
            key_input=None if self.key_input is None else self.key_input[:, rows],
            query_padding=None if padding is None else padding[rows],
            attention_mask=self.attention_mask.rows(rows),
            projected=projected and (lambda: tuple(x[rows] for x in projected())),
            paired=False,
            _valid=None,
        )

    def mask(self, logits: Tensor) -> Tensor:
        """The logits with −inf at blocked pairs."""
        if self.blocked is None:
            return logits
        # Adding is faster than masked_fill: its gradient is the identity.
        return logits + self.attention_mask.additive(logits.dtype)
