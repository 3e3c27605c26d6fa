"""Gradients of our own: the reversal (Ganin and Lempitsky 2015), by which one backward and one
optimizer serve two opponents; the straight-through estimate for binary masks (Bengio et al. 2013);
a highway layer and a gathering whose backward writes in place."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _ReverseGradient(torch.autograd.Function):
    """The identity, whose gradient is −strength times the one that arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """x as it is; what lies before it maximises what lies behind it minimises.

    Before features it turns a network against those who made them (GAN); before a network's
    parameters it turns that network against everybody else, who still share one descent (CT).
    """
    return _ReverseGradient.apply(x, strength)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hard: Tensor, soft: Tensor) -> Tensor:
        return hard.to(soft.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, with the gradient of ``soft`` that stands for it."""
    return _StraightThrough.apply(hard, soft)


# As good as −∞ beside what a row keeps, e^−25 ≈ 1e-11, and small enough to divide by.
_MASKED = 25.0


class _MaskLastRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, m: Tensor, blocked: Tensor | None) -> Tensor:
        ctx.mark_dirty(logits)
        rows, masked = logits[-m.size(0) :], m.bool()
        kept = rows.masked_fill(masked if blocked is None else masked | blocked, -torch.inf)
        total = kept.logsumexp(dim=-1, keepdim=True)  # (B, H, T, 1)
        if ctx.needs_input_grad[1]:
            # The softmax will hand over W_s·r, with r = ∂L/∂W_s − Σ W ∂L/∂W, for every cell.
            odds = rows - total
            opened = odds.sigmoid().mul_(math.exp(_MASKED))
            closed = odds.exp().neg_().add_(1).clamp_(min=1e-3).reciprocal_()
            ctx.save_for_backward(torch.where(masked, opened, closed))
        rows.copy_(torch.where(masked, total - _MASKED, rows))
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # What masked logits get is next to nothing already.
        if not ctx.needs_input_grad[1]:
            return gradient, None, None
        (factor,) = ctx.saved_tensors
        rows = gradient[-factor.size(0) :]
        return gradient, -(rows * factor).sum(dim=1, keepdim=True), None


def mask_last_rows(logits: Tensor, m: Tensor, blocked: Tensor | None = None) -> Tensor:
    """logits (N, H, T, S), in fp32 or better, with the cells of their last B rows masked, in place,
    where m (B, 1, T, S) is 1; ``blocked`` are the cells that have no weight in any case.

    The gradient of m is that of the line between the weights with and without a cell. For a masked
    cell s, which would have the weight p, ∂W/∂m_s = −p(δ_s − W); for a kept one it is
    −W_s/(1 − W_s)·(δ_s − W). By the softmax alone masked cells would learn nothing.
    """
    return _MaskLastRows.apply(logits, m, blocked)


def plain_highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """τ ⊙ ReLU(Φ_h(x)) + (1 − τ) ⊙ x with τ = σ(Φ_τ(x)); the rows of weight are Φ_τ, then Φ_h."""
    gate, transform = F.linear(x, weight, bias).chunk(2, dim=-1)
    return torch.lerp(x, transform.relu(), gate.sigmoid())


def highway_forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``plain_highway`` of rows x (N, d), and for its backward τ and ReLU(Φ_h(x)), (N, d) each.

    Two products, although one could do both: operators on what lies apart are faster.
    """
    (w_gate, w_transform), (b_gate, b_transform) = weight.chunk(2), bias.chunk(2)
    gate = torch.addmm(b_gate, x, w_gate.t()).sigmoid_()
    transform = torch.addmm(b_transform, x, w_transform.t()).relu_()
    return torch.lerp(x, transform, gate), gate, transform


def highway_backward(
    dy: Tensor,
    x: Tensor,
    gate: Tensor,
    transform: Tensor,
    weight: Tensor,
    parameters: tuple[Tensor, Tensor],
    overwrite: bool = False,
) -> Tensor:
    """The gradient of x (N, d); those of weight and bias are added to ``parameters``.

    With ``overwrite`` the memory of dy and of the transform is used for results.
    """
    of_transform = dy * gate
    dx = torch.sub(dy, of_transform, out=dy if overwrite else None)  # (1 − τ)·dy
    torch.ops.aten.threshold_backward(of_transform, transform, 0, grad_input=of_transform)
    of_gate = torch.sub(transform, x, out=transform if overwrite else None)
    of_gate.mul_(gate).mul_(dx)  # σ' = τ(1 − τ)
    d_weight, d_bias = parameters
    for slope, w, dw, db in zip(
        (of_gate, of_transform), weight.chunk(2), d_weight.chunk(2), d_bias.chunk(2), strict=True
    ):
        dx.addmm_(slope, w)
        dw.addmm_(slope.t(), x)
        db.add_(slope.sum(dim=0))
    return dx


class _Highway(torch.autograd.Function):
    """``plain_highway`` of rows x (N, d), with half the passes over memory in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, gate, transform = highway_forward(x, weight, bias)
        ctx.save_for_backward(x, gate, transform, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        x, gate, transform, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate this gradient again
            out = plain_highway(x, weight, bias)
            return torch.autograd.grad(out, (x, weight, bias), dy, create_graph=True)
        parameters = torch.zeros_like(weight), torch.zeros_like(bias)
        return highway_backward(dy, x, gate, transform, weight, parameters), *parameters


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``plain_highway``, faster; x (…, d)."""
    return _Highway.apply(x.flatten(0, -2), weight, bias).view_as(x)


class _GatherRows(torch.autograd.Function):
    """Rows of two tensors behind each other, in one pass; their gradients are written once."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, in_a: Tensor | None, in_b: Tensor | None, strength: float
    ) -> Tensor:
        ctx.indices, ctx.lengths, ctx.strength = (in_a, in_b), (len(a), len(b)), strength
        counts = [len(x if i is None else i) for x, i in ((a, in_a), (b, in_b))]
        rows = a.new_empty((sum(counts), *a.shape[1:]))
        for x, index, place in zip((a, b), ctx.indices, rows.split(counts), strict=True):
            if index is None:
                place.copy_(x)
            else:
                torch.index_select(x, 0, index, out=place)
        ctx.counts = counts
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.strength != 1:
            gradient = gradient * ctx.strength
        back = []
        for part, index, length in zip(
            gradient.split(ctx.counts), ctx.indices, ctx.lengths, strict=True
        ):
            if index is not None:
                part = part.new_zeros((length, *part.shape[1:])).index_copy_(0, index, part)
            back.append(part)
        return *back, None, None, None


def gather_rows(
    a: Tensor, b: Tensor, in_a: Tensor | None, in_b: Tensor | None, strength: float = 1.0
) -> Tensor:
    """Rows ``in_a`` of a, then rows ``in_b`` of b (None: all of them), no row named twice.

    The gradient is ``strength`` times the one that arrives: −1 reverses it.
    """
    return _GatherRows.apply(a, b, in_a, in_b, strength)
