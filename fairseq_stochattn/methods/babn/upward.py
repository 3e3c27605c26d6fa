"""The upward network of BABN (Zhang et al. 2021, §3): the hidden states h of all L layers.

    h^{L+1} = softmax(Φ¹),  h^l = softplus(f3^l(h^{l+1}))  for l = L … 1

Φ¹ are the logits of the first of the L layers. h is (B, H, T, S). f3 maps each state to the next
one. In layer l, f1(h^l) enters the shape k of the Weibull weights, and f2(h^l) their scale λ
(``inference.py``). f1, f2 and f3 are linear maps along the key axis (the paper's matrices) or along
the head axis, which works for any number of keys. No map mixes queries, because that would leak
future tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.context import AttentionContext, AttentionMask, CacheLast
from ...core.device import reading_is_free
from ...core.softmax import softmax

INIT_STD = 0.02


class PositionMap(nn.Module):
    """``maps`` linear maps along the key axis.

    They mix the first ``max_positions`` keys; later keys stay unchanged.
    """

    def __init__(self, maps: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        eye = torch.eye(max_positions).expand(maps, -1, -1)
        self.weight = nn.Parameter(eye + INIT_STD * torch.randn(eye.shape))
        self.bias = nn.Parameter(torch.zeros(maps, max_positions))

    def forward(self, h: Tensor) -> list[Tensor]:
        """(B, H, T, S) → a tensor of that shape for each map."""
        mapped = min(h.size(-1), self.max_positions)
        weights, biases, front = self.weight, self.bias, h
        if mapped < self.max_positions:
            weights, biases = weights[:, :mapped, :mapped], biases[:, :mapped]
        if mapped < h.size(-1):
            front = h[..., :mapped]
        if weights.dtype != h.dtype:
            weights, biases = weights.to(h.dtype), biases.to(h.dtype)
        # One product per map, because one batched product would have to copy the sliced weights.
        mixed = [
            F.linear(front, w, b) for w, b in zip(weights.unbind(), biases.unbind(), strict=True)
        ]
        if mapped == h.size(-1):
            return mixed
        return [torch.cat([m, h[..., mapped:]], dim=-1) for m in mixed]


class HeadMap(nn.Module):
    """``maps`` linear maps along the head axis, with few parameters and for any number of keys."""

    def __init__(self, maps: int, num_heads: int) -> None:
        super().__init__()
        eye = torch.eye(num_heads).expand(maps, -1, -1)
        self.weight = nn.Parameter(eye + INIT_STD * torch.randn(eye.shape))
        self.bias = nn.Parameter(torch.zeros(maps, num_heads))

    def forward(self, h: Tensor) -> list[Tensor]:
        """(B, H, T, S) → a tensor of that shape for each map."""
        mixed = torch.einsum("moh,bhts->mbots", self.weight.to(h.dtype), h)
        return list(mixed + self.bias.to(h.dtype)[:, None, :, None, None])


class KeyShift:
    """Shifts the keys of every sentence so that its first non-padding token is at position 0.

    Sources are padded on the left, so without the shift the position of a token would depend on the
    longest sentence in its batch. ``index`` and ``inverse`` are None if no sentence needs a shift.
    """

    def __init__(self, mask: AttentionMask) -> None:
        self.mask = mask
        self.index: Tensor | None = None  # (B, 1, 1, S): shifted key j is key index[j]
        self.inverse: Tensor | None = None  # (B, 1, 1, S): key j is shifted key inverse[j]
        self._visible: Tensor | None = None
        key_padding = mask.key_padding
        if key_padding is None:
            return
        if reading_is_free(key_padding) and not bool(key_padding[:, 0].any()):
            return  # elsewhere, a shift by 0 costs less than to wait for the answer
        offsets = key_padding.long().cumprod(dim=1).sum(dim=1).view(-1, 1, 1, 1)
        keys = torch.arange(key_padding.size(1), device=key_padding.device)
        self.index = (keys + offsets) % len(keys)
        self.inverse = (keys - offsets) % len(keys)

    def shift(self, x: Tensor) -> Tensor:
        """Return x (B|1, H|1, T|1, S) with shifted keys, where ``|1`` means broadcast."""
        return x if self.index is None else permute_keys(x, self.index, self.inverse)

    def unshift(self, x: Tensor) -> Tensor:
        """The inverse of ``shift``."""
        return x if self.inverse is None else permute_keys(x, self.inverse, self.index)

    def visible(self, dtype: torch.dtype) -> Tensor | None:
        """(B|1, 1, T|1, S): 1 where a query may see the shifted key, else 0.

        None if no pair is blocked.
        """
        if self.mask.blocked is None:
            return None
        if self._visible is None or self._visible.dtype != dtype:
            self._visible = (~self.shift(self.mask.blocked)).to(dtype)
        return self._visible


def gather_keys(x: Tensor, index: Tensor) -> Tensor:
    """The keys of x (B|1, H|1, T|1, S) in the order of ``index`` (B, 1, 1, S)."""
    x = x.expand(index.size(0), -1, -1, -1)
    return x.gather(-1, index.expand_as(x))


def permute_keys(x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """``gather_keys`` with a fast backward pass; ``inverse`` is the inverse permutation."""
    if not torch.is_grad_enabled():  # skips the overhead of the autograd function
        return gather_keys(x, index)
    return _PermuteKeys.apply(x, index, inverse)


class _PermuteKeys(torch.autograd.Function):
    """Permutes keys. The backward pass gathers by the inverse, which is faster than a scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return gather_keys(x, index)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        return _PermuteKeys.apply(grad_output, inverse, index), None, None


class UpwardChain(nn.Module):
    """Computes the hidden states h^L … h^1 from Φ¹ with one map f3 per layer, or one for all."""

    def __init__(self, f3: list[nn.Module], layers: list[int]) -> None:
        super().__init__()
        self.f3 = nn.ModuleList(f3)  # one map for all layers, or one per layer, first layer first
        self.layers = layers
        self.key_shift = CacheLast(KeyShift)

    def forward(self, first_logits: Tensor, context: AttentionContext) -> UpwardStates:
        """Return h of all layers from the logits Φ¹ (B, H, T, S) of the first layer.

        After every step, h is set to 0 at blocked pairs, so that padding and future tokens
        contribute nothing to other keys.
        """
        key_shift = self.key_shift(context.attention_mask)
        h = key_shift.shift(softmax(context.mask(first_logits)))
        visible = key_shift.visible(h.dtype)
        states: dict[int, Tensor] = {}
        for index in reversed(range(len(self.layers))):
            (mixed,) = self.f3[index if len(self.f3) > 1 else 0](h)
            h = F.softplus(mixed)
            if visible is not None:
                h = h * visible
            states[self.layers[index]] = h
        return UpwardStates(key_shift, states)


@dataclass
class UpwardStates:
    """The hidden states of all layers, with shifted keys."""

    key_shift: KeyShift
    states: dict[int, Tensor]  # layer → h (B, H, T, S)

    def apply(self, maps: nn.Module, layer: int, heads: int) -> list[Tensor]:
        """Return f1(h^l) and, if the setting ``sigma`` is above 0, f2(h^l), in layer l.

        The keys are in the order of the logits again. A layer with another number of heads than the
        first one, such as the last layer of a graph attention network, gets the mean of h over the
        heads.
        """
        h = self.states[layer]
        if h.size(1) != heads:
            h = h.mean(dim=1, keepdim=True).expand(-1, heads, -1, -1)
        return [self.key_shift.unshift(x) for x in maps(h)]
