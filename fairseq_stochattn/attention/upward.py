"""The upward network of BABN: linear maps that keep the size of h, and the chain of hidden states.

h is (B, H, T, S). The maps mix along the key axis by position (the paper's matrices) or along the
head axis, which knows no length. Mixing along queries would show the future, so nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells, Hidden, Remembered

INIT_STD = 0.02


class PositionMap(nn.Module):
    """``maps`` linear maps along the key axis: matrices for the first N keys, identity beyond."""

    def __init__(self, maps: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        eye = torch.eye(max_positions).expand(maps, -1, -1)
        self.weight = nn.Parameter(eye + INIT_STD * torch.randn(eye.shape))
        self.bias = nn.Parameter(torch.zeros(maps, max_positions))

    def forward(self, h: Tensor) -> list[Tensor]:
        """(B, H, T, S) → a tensor of that shape for each map."""
        known = min(h.size(-1), self.max_positions)
        weights, biases, front = self.weight, self.bias, h
        if known < self.max_positions:
            weights, biases = weights[:, :known, :known], biases[:, :known]
        if known < h.size(-1):
            front = h[..., :known]
        if weights.dtype != h.dtype:
            weights, biases = weights.to(h.dtype), biases.to(h.dtype)
        # One product a map: slices of the matrices are views, both together would be a copy.
        mixed = [
            F.linear(front, w, b) for w, b in zip(weights.unbind(), biases.unbind(), strict=True)
        ]
        if known == h.size(-1):
            return mixed
        return [torch.cat([m, h[..., known:]], dim=-1) for m in mixed]


class HeadMap(nn.Module):
    """``maps`` linear maps along the head axis: for any length, with next to no parameters."""

    def __init__(self, maps: int, num_heads: int) -> None:
        super().__init__()
        eye = torch.eye(num_heads).expand(maps, -1, -1)
        self.weight = nn.Parameter(eye + INIT_STD * torch.randn(eye.shape))
        self.bias = nn.Parameter(torch.zeros(maps, num_heads))

    def forward(self, h: Tensor) -> list[Tensor]:
        """(B, H, T, S) → a tensor of that shape for each map."""
        mixed = torch.einsum("moh,bhts->mbots", self.weight.to(h.dtype), h)
        return list(mixed + self.bias.to(h.dtype)[:, None, :, None, None])


class Alignment:
    """Keys moved along so that every sentence's first real token is at position 0.

    Sources are padded on the left: without this, a token's position would depend on the longest
    sentence of its batch. The indices are None where nothing has to move.
    """

    def __init__(self, hidden: Hidden) -> None:
        self.hidden = hidden
        self.forth: Tensor | None = None  # (B, 1, 1, S): where each aligned key is
        self.back: Tensor | None = None  # (B, 1, 1, S): where each key is, aligned
        self._seen: Tensor | None = None
        key_padding = hidden.key_padding
        if key_padding is None or not bool(key_padding[:, 0].any()):
            return
        offsets = key_padding.long().cumprod(dim=1).sum(dim=1).view(-1, 1, 1, 1)
        keys = torch.arange(key_padding.size(1), device=key_padding.device)
        self.forth = (keys + offsets) % len(keys)
        self.back = (keys - offsets) % len(keys)

    def align(self, x: Tensor) -> Tensor:
        """x (B|1, h, t, S)."""
        return x if self.forth is None else permuted(x, self.forth, self.back)

    def seen(self, dtype: torch.dtype) -> Tensor | None:
        """(B|1, 1, T|1, S): 1 where a query may see the aligned key, else 0; None if everywhere."""
        if self.hidden.blocked is None:
            return None
        if self._seen is None or self._seen.dtype != dtype:
            self._seen = (~self.align(self.hidden.blocked)).to(dtype)
        return self._seen

    def restore(self, x: Tensor) -> Tensor:
        return x if self.back is None else permuted(x, self.back, self.forth)


def picked(x: Tensor, index: Tensor) -> Tensor:
    """Keys of x (B|1, h, t, S) in the order of ``index`` (B, 1, 1, S)."""
    x = x.expand(index.size(0), -1, -1, -1)
    return x.gather(-1, index.expand_as(x))


def permuted(x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """``picked``; autograd's way round it costs more than it does where nobody learns."""
    if not torch.is_grad_enabled():
        return picked(x, index)
    return _Permute.apply(x, index, inverse)


class _Permute(torch.autograd.Function):
    """Keys in another order; back, they are picked again, which scatters nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return picked(x, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        return _Permute.apply(gradient, inverse, index), None, None


class UpwardChain(nn.Module):
    """f3 of every layer; h^{L+1} = softmax(Φ¹), h^l = softplus(f3^l(h^{l+1})), l = L … 1."""

    def __init__(self, f3: list[nn.Module], layers: list[int]) -> None:
        super().__init__()
        self.f3 = nn.ModuleList(f3)  # one, or one a layer, that of layer 1 first
        self.layers = layers
        self.aligned = Remembered(Alignment)

    def forward(self, first_logits: Tensor, cells: Cells) -> UpwardStates:
        """Everything from Φ¹ (B, H, T, S): hidden cells that must not be seen are 0 at every step,
        so that padding and the future mix into nothing."""
        alignment = self.aligned(cells.hidden)
        h = alignment.align(cells.mask(first_logits).softmax(dim=-1))
        seen = alignment.seen(h.dtype)
        states: dict[int, Tensor] = {}
        for index in reversed(range(len(self.layers))):
            (mixed,) = self.f3[index if len(self.f3) > 1 else 0](h)
            h = F.softplus(mixed)
            if seen is not None:
                h = h * seen
            states[self.layers[index]] = h
        return UpwardStates(alignment, states)


@dataclass
class UpwardStates:
    """h of every layer, keys aligned; and the way back."""

    alignment: Alignment
    states: dict[int, Tensor]

    def apply(self, maps: nn.Module, layer: int) -> list[Tensor]:
        """f1(h^l), f2(h^l) …, keys where the logits have them."""
        return [self.alignment.restore(x) for x in maps(self.states[layer])]
