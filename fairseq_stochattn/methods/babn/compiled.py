"""The elementwise formulas of ``inference.py`` for torch.compile (the setting ``compile``).

They are written as in the paper and work on flat tensors, because a compiler fuses them into one
loop each, without the in-place operations of the hand-written version. log Γ and ψ come from one
asymptotic series, whose absolute error is about 1e-6 in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...core.compiling import Compiled
from ...core.distributions import EULER, MAX_EXPONENT

if TYPE_CHECKING:
    from .inference import Constants

MIN_ELEMENTS = 4096  # for fewer, the call of a compiled function costs more than it saves
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Formulas(NamedTuple):
    """The two functions of one set of constants."""

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., tuple[Tensor, ...]]


def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ)."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def log_gamma_1p(x: Tensor) -> Tensor:
    """log Γ(1 + x) for x ≥ 0, from Stirling's series at y = x + 5.

    Γ(y) = Γ(1 + x)·(x+1)(x+2)(x+3)(x+4), and the product is t² − 1 with t = xy + 5.
    """
    y = x + 5
    inverse, t = 1 / y, x * y + 5
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square / 1260))
    return (y - 0.5) * y.log() - y + (_HALF_LOG_2PI + series) - (t * t - 1).log()


def digamma_1p(x: Tensor) -> Tensor:
    """ψ(1 + x) for x ≥ 0, as in ``core/distributions.py``."""
    y = x + 5
    inverse, t = 1 / y, x * y + 5
    square = inverse * inverse
    series = inverse * (0.5 + inverse * (1 / 12 - square * (1 / 120 - square / 252)))
    return y.log() - series - (4 * x + 10) * t / (t * t - 1)


@lru_cache(maxsize=16)
def formulas(constants: Constants, max_mean: float, clamped_above: float) -> Formulas:
    """The compiled functions; ``constants`` become numbers in their code.

    ``max_mean`` bounds E[S] in the KL, and above ``clamped_above`` it counts as bounded.
    """
    rho, sigma, k_min, beta, normalize, _ = constants

    def forward(
        exp_scores: Tensor, scores: Tensor | None, f1: Tensor, f2: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, ...]:
        """Return k, Γ(1+1/k), E[S], log S, and two parts of the KL: γ/k − log λ, log k + βE[S]."""
        k = rho * softplus(f1) + exp_scores + k_min
        log_gamma = log_gamma_1p(1 / k)
        gamma = log_gamma.exp()
        if f2 is None:
            mean, log_mean = exp_scores, scores
        else:
            limits = torch.finfo(exp_scores.dtype)
            mean = (exp_scores + sigma * softplus(f2) * gamma).clamp(limits.tiny, limits.max)
            log_mean = mean.log()
            if not normalize:
                log_mean = log_mean + (scores - MAX_EXPONENT).clamp(min=0)
        log_lambda = log_mean - log_gamma
        log_s = log_lambda + noise / k
        kl_rest = k.log() + beta * mean.clamp(max=max_mean)
        return k, gamma, mean, log_s, EULER / k - log_lambda, kl_rest

    def backward(
        grad_log_s: Tensor,
        w: Tensor,
        w_alpha: Tensor,
        k: Tensor,
        exp_scores: Tensor,
        gamma: Tensor,
        mean: Tensor,
        f1: Tensor,
        f2: Tensor | None,
        noise: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the gradients of the (log-softmaxed) scores, f1 and f2.

        ``w`` is the gradient of the KL of each pair, and ``w_alpha`` is w·α.
        """
        inv_k = 1 / k
        bounded = torch.where(mean >= clamped_above, 0.0, mean)
        grad_log_mean = beta * w * bounded - w_alpha + grad_log_s
        grad_log_gamma = w_alpha - grad_log_s
        grad_scores, grad_f2 = grad_log_mean, None
        if f2 is not None:
            grad_scores = exp_scores / mean * grad_log_mean
            grad_f2 = sigma * torch.sigmoid(f2) * gamma / mean * grad_log_mean
            grad_log_gamma = grad_log_gamma + grad_log_mean - grad_scores
        grad_inv_k = EULER * w_alpha - w * k + grad_log_s * noise
        grad_inv_k = grad_inv_k + digamma_1p(inv_k) * grad_log_gamma
        grad_k = -grad_inv_k * inv_k * inv_k
        derivative = exp_scores
        if not normalize:
            derivative = torch.where(exp_scores >= clamped_above, 0.0, exp_scores)
        grad_scores = grad_scores + grad_k * derivative
        return grad_scores, rho * torch.sigmoid(f1) * grad_k, grad_f2

    return Formulas(Compiled(forward), Compiled(backward))
