"""Gradient tricks: reversal for adversarial training, straight-through masks, faster parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grad_output, None


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """Identity in the forward pass; multiplies the gradient by −strength (Ganin et al. 2015).

    Applied to features, it turns a network against the layers that computed them (GAN). Applied
    to a network's parameters, it makes that network maximise what all others minimise (CT).
    """
    return _ReverseGradient.apply(x, strength)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hard: Tensor, soft: Tensor) -> Tensor:
        return hard.to(soft.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor]:
        return None, grad_output


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard`` with the gradient of ``soft`` (Bengio et al. 2013)."""
    return _StraightThrough.apply(hard, soft)


class _ThroughProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad_out.flatten(0, -2)
        grad_weight = rows.t() @ x.flatten(0, -2).to(rows.dtype)
        grad_bias = rows.sum(dim=0) if ctx.has_bias else None
        return None, None, grad_weight.to(weight.dtype), grad_bias


def through_projection(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``out`` = x Wᵀ + b, already computed, with a gradient for W and b but not for x."""
    return _ThroughProjection.apply(out.detach(), x.detach(), weight, bias)


class _Magnify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output, None


def magnify(parameter: Tensor, factor: float) -> Tensor:
    """w = factor · v, where the parameter v receives the gradient of w unchanged.

    A step s(g) of an optimizer on v moves w by factor · s(g), and g is what it would be without
    the factor. So w learns ``factor`` times as fast under every optimizer whose step depends on the
    gradients alone (SGD, Adam, …), and gradient clipping sees the same norm.
    """
    return parameter if factor == 1 else _Magnify.apply(parameter, factor)
