"""Gradient reversal (Ganin and Lempitsky 2015): one backward, one optimizer, two opponents."""

from __future__ import annotations

from typing import Any

import torch
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
