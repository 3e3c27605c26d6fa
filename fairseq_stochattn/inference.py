"""BABN's inference network in one layer, with its gradient written out.

One autograd function instead of the five dozen operators of the equations: one log Γ and one ψ a
cell, and seven tensors of the size of the logits kept instead of two dozen.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_stochattn.distributions import (
    EULER,
    MAX_EXPONENT,
    bounded_exp,
    digamma_1p,
    log_gamma_1p,
)

MAX_RATIO = 80.0  # the bound of exponents for Γ/E[S]: e^80 is a finite float
FEW = 1 << 14  # cells: below, torch's one lgamma is faster than the series' fifteen calls

Constants = tuple[float, float, float, float]  # ρ, σ, k_min, β


class Given(NamedTuple):
    """What the network starts from: ``weibull_attention``'s tensors."""

    scores: Tensor
    f1: Tensor
    f2: Tensor | None
    alpha: Tensor | None
    noise: Tensor | None
    valid: Tensor | None


def infer(given: Given, constants: Constants) -> tuple[Tensor, ...]:
    """log S, the KL, k, log Γ(1+1/k) and log E[S]; of cells ``weibull_attention``'s."""
    scores, f1, f2, alpha, noise, valid = given
    rho, sigma, k_min, beta = constants
    k = torch.add(bounded_exp(scores), F.softplus(f1), alpha=rho).add_(k_min)
    inverse = k.reciprocal()
    few = k.numel() < FEW
    log_gamma = torch.lgamma(inverse + 1) if few else log_gamma_1p(inverse)
    log_mean = scores
    if f2 is not None:
        from_f2 = F.softplus(f2).log_().add_(log_gamma).add_(math.log(sigma))
        log_mean = torch.logaddexp(scores, from_f2)
    if noise is None and alpha is None:  # the mean alone: beam search wants nothing else
        return log_mean, scores.new_zeros(()), k, log_gamma, log_mean
    log_scale = log_mean - log_gamma
    log_s = log_mean if noise is None else torch.addcmul(log_scale, noise, inverse)
    kl = scores.new_zeros(())
    if alpha is not None:
        of_key = torch.lgamma(alpha) - alpha * math.log(beta) - (EULER + 1)  # (B, H, 1, S)
        cells = inverse.mul_(EULER).sub_(log_scale).mul_(alpha).add_(of_key)
        cells.add_(k.log()).add_(bounded_exp(log_mean), alpha=beta)
        kl = cells.mul_(valid.to(k.dtype)).sum()  # a bool would be converted for every head
    return log_s, kl, k, log_gamma, log_mean


def infer_backward(
    grad_s: Tensor,
    grad_kl: Tensor,
    given: Given,
    k: Tensor,
    log_gamma: Tensor,
    log_mean: Tensor,
    constants: Constants,
) -> tuple[Tensor | None, ...]:
    """The gradients of scores, f1, f2 and alpha."""
    scores, f1, f2, alpha, noise, valid = given
    rho, sigma, _, beta = constants
    inverse = k.reciprocal()
    # By log E[S], log Γ(1+1/k) and 1/k; what is None is 0.
    d_mean, d_gamma, d_inverse, d_alpha = grad_s, None, None, None
    if alpha is not None:
        w = grad_kl * valid  # (B, 1, T, S)
        # One α for all queries of a key: sum over them, and its own terms once a cell.
        slope = torch.mul(inverse, EULER).sub_(log_mean).add_(log_gamma)
        d_alpha = slope.mul_(w).sum(2, keepdim=True)
        d_alpha += w.sum(2, keepdim=True) * (torch.digamma(alpha) - math.log(beta))
        of_alpha = w * alpha
        d_mean = _below_bound(bounded_exp(log_mean), log_mean).mul_(w * beta)
        d_mean.sub_(of_alpha).add_(grad_s)
        d_gamma = of_alpha.clone() if noise is None else of_alpha - grad_s
        d_inverse = of_alpha.mul_(EULER).addcmul_(w, k, value=-1)  # log k is −log(1/k)
        if noise is not None:
            d_inverse.addcmul_(grad_s, noise)
    elif noise is not None:
        d_gamma, d_inverse = -grad_s, grad_s * noise
    d_scores, d_f2 = d_mean, None
    if f2 is not None:
        # The share of E[S] that comes from f2 is σ·softplus(f2)·Γ/E[S].
        minus_share = torch.expm1(scores - log_mean).mul_(d_mean)
        d_scores = d_mean + minus_share
        d_f2 = (log_gamma - log_mean).clamp_(max=MAX_RATIO).exp_().mul_(d_mean)
        d_f2.mul_(torch.sigmoid(f2)).mul_(sigma)
        d_gamma = -minus_share if d_gamma is None else d_gamma.sub_(minus_share)
    if d_gamma is None:
        return d_scores, torch.zeros_like(f1), d_f2, d_alpha
    of_psi = digamma_1p(inverse).mul_(d_gamma)
    d_inverse = of_psi if d_inverse is None else d_inverse.add_(of_psi)
    minus_d_k = d_inverse.mul_(inverse).mul_(inverse)
    exponential = _below_bound(bounded_exp(scores), scores)
    d_scores = torch.addcmul(d_scores, minus_d_k, exponential, value=-1)
    return d_scores, minus_d_k.mul_(torch.sigmoid(f1)).mul_(-rho), d_f2, d_alpha


def _below_bound(x: Tensor, exponent: Tensor) -> Tensor:
    """x where ``bounded_exp`` has a slope, else 0: faster than a comparison and a product."""
    return torch.ops.aten.hardtanh_backward(x, exponent, -math.inf, MAX_EXPONENT)


class _WeibullAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, constants: Constants, *given: Tensor | None) -> tuple[Tensor, ...]:
        log_s, kl, *kept = infer(Given(*given), constants)
        ctx.save_for_backward(*given, *kept)
        ctx.constants = constants
        ctx.mark_non_differentiable(kept[0])
        return log_s, kl, kept[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_s: Tensor, grad_kl: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        given, kept = Given(*ctx.saved_tensors[:6]), ctx.saved_tensors[6:]
        gradients = infer_backward(grad_s, grad_kl, given, *kept, ctx.constants)
        return None, *gradients, None, None


def weibull_attention(
    scores: Tensor,
    f1: Tensor,
    f2: Tensor | None,
    alpha: Tensor | None,
    noise: Tensor | None,
    valid: Tensor | None,
    rho: float,
    sigma: float,
    k_min: float,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """BABN's inference network in one layer, from f1(h), f2(h) and the scores on:

    k = ρ·softplus(f1) + exp(scores) + k_min; λ = σ·softplus(f2) + exp(scores)/Γ(1+1/k).

    Shapes: scores, f1, f2, noise (B, H, T, S); alpha (B, H, 1, S); valid (B, 1, T, S). ``f2`` None
    is σ = 0, ``alpha`` None asks for no KL and needs no ``valid``, ``noise`` None for the mean.
    Returns log S (or log E[S]), the KL to Gamma(α, β) summed over valid cells, and k, which carries
    no gradient.
    """
    constants = (rho, sigma, k_min, beta)
    given = Given(scores, f1, f2, alpha, noise, valid)
    if not torch.is_grad_enabled():
        return infer(given, constants)[:3]
    return _WeibullAttention.apply(constants, *given)
