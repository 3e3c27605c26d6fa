"""Weibull, gamma and lognormal, as attention weights need them: samples, means, KLs, in log space;
and the noise of binary masks.

Pure functions of tensors. They compute in fp32 or better; callers hand over ``at_least_float``
tensors. k is a Weibull's shape and λ its scale, α and β a gamma's shape and rate, μ and s a
lognormal's location and width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EULER = 0.5772156649015329  # γ
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
# Inside exponentials logits end here: e^15 is beyond any weight, and its square is still finite.
MAX_EXPONENT = 15.0
MIN_ALPHA = 1e-8
FEW = 1 << 14  # cells


def at_least_float(x: Tensor) -> Tensor:
    """fp16 and bf16 become fp32, doubles stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def bounded_exp(x: Tensor) -> Tensor:
    return x.clamp(max=MAX_EXPONENT).exp()


def log_gamma_1p(x: Tensor) -> Tensor:
    """log Γ(1 + x) for x ≥ 0, to 1e-8: Stirling's series at x + 5, shifted back.

    The shift divides by (x+1)(x+2)(x+3)(x+4) = (q+4)(q+6) with q = x(x+5).
    """
    y = x + 5
    q = x * y
    inverse = y.reciprocal()
    square = inverse * inverse
    series = square.mul(1 / 1260).sub_(1 / 360).mul_(square).add_(1 / 12).mul_(inverse)
    shift = (q + 4).mul_(q + 6).log_()
    return (y - 0.5).mul_(y.log()).sub_(y).add_(HALF_LOG_TAU).add_(series).sub_(shift)


def digamma_1p(x: Tensor) -> Tensor:
    """ψ(1 + x) for x ≥ 0, to 1e-8: the derivative of ``log_gamma_1p``'s formula."""
    y = x + 5
    q = x * y
    inverse = y.reciprocal()
    square = inverse * inverse
    series = square.mul(-1 / 252).add_(1 / 120).mul_(square).sub_(1 / 12).mul_(inverse)
    series.sub_(0.5).mul_(inverse)
    shift = (2 * x + 5).mul_(2 * q + 10).div_((q + 4).mul_(q + 6))
    return y.log().add_(series).sub_(shift)


def weibull_noise(like: Tensor, low: float = 0.1, high: float = 0.9) -> Tensor:
    """log(−log(1−u)), u ~ U(low, high): the noise of a Weibull in log space, its tails cut."""
    u = torch.rand_like(like).mul_(high - low).add_(low)
    return u.neg_().log1p_().neg_().log_()


def weibull_log_sample(log_scale: Tensor, k: Tensor | float, noise: Tensor) -> Tensor:
    """log S = log λ + log(−log(1−u))/k."""
    return log_scale + noise / k


def weibull_log_mean(log_scale: Tensor, k: Tensor) -> Tensor:
    """log E[S] = log λ + log Γ(1+1/k)."""
    return log_scale + log_gamma_1p(1 / k)


def weibull_variation(k: Tensor) -> Tensor:
    """Standard deviation over mean, √(Γ(1+2/k)/Γ(1+1/k)² − 1): of the full, uncut Weibull."""
    return (log_gamma_1p(2 / k) - 2 * log_gamma_1p(1 / k)).expm1().clamp(min=0).sqrt()


def kl_weibull_gamma(k: Tensor, log_scale: Tensor, alpha: Tensor, beta: Tensor | float) -> Tensor:
    """KL(Weibull(k, λ) ‖ Gamma(α, β)) = γα/k − α log λ + log k + βλΓ(1+1/k) − γ − 1 − α log β
    + log Γ(α)."""
    beta = torch.as_tensor(beta, dtype=log_scale.dtype, device=log_scale.device)
    mean = bounded_exp(weibull_log_mean(log_scale, k))
    slope = EULER / k - log_scale - beta.log()
    return alpha * slope + k.log() + beta * mean - EULER - 1 + torch.lgamma(alpha)


def lognormal_log_sample(mu: Tensor, s: Tensor | float, noise: Tensor) -> Tensor:
    """log S = μ + sε."""
    return mu + s * noise


def lognormal_log_mean(mu: Tensor, s: Tensor | float) -> Tensor:
    """log E[S] = μ + s²/2."""
    return mu + s * s / 2


def lognormal_variation(s: float) -> float:
    """Standard deviation over mean, √(exp(s²) − 1)."""
    return math.sqrt(math.expm1(s * s))


def kl_lognormal(mu: Tensor, s: Tensor, prior_mu: Tensor, prior_s: Tensor) -> Tensor:
    """KL(LogNormal(μ, s) ‖ LogNormal(μ₀, s₀)), which is that of the normals in log space."""
    ratio = s / prior_s
    return 0.5 * (ratio**2 + ((mu - prior_mu) / prior_s) ** 2 - 1) - ratio.log()


def logistic_noise(like: Tensor) -> Tensor:
    """log u − log(1−u), u ~ U(0, 1): a logit plus it is positive with the logit's probability."""
    return torch.rand_like(like).logit_(eps=2.0**-25)


class _WeibullAttention(torch.autograd.Function):
    """``weibull_attention`` with its gradient written out.

    Saves four tensors of the size of the logits instead of the two dozen that autograd would keep,
    and takes one log Γ and one ψ a cell.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        f1: Tensor,
        f2: Tensor | None,
        alpha: Tensor | None,
        noise: Tensor | None,
        valid: Tensor,
        constants: tuple[float, float, float, float],
    ) -> tuple[Tensor, Tensor, Tensor]:
        rho, sigma, k_min, beta = constants
        k, log_gamma, log_mean = _weibull_cells(scores, f1, f2, rho, sigma, k_min)
        log_scale = log_mean - log_gamma
        log_s = log_mean if noise is None else log_scale + noise / k
        kl = scores.new_zeros(())
        if alpha is not None:
            cells = (EULER / k).sub_(log_scale).sub_(math.log(beta)).mul_(alpha)
            cells.add_(k.log()).add_(bounded_exp(log_mean), alpha=beta)
            cells.add_(torch.lgamma(alpha) - (EULER + 1))
            kl = cells.masked_fill_(~valid, 0.0).sum()
        ctx.save_for_backward(scores, f1, f2, alpha, noise, valid)
        ctx.constants = constants
        ctx.mark_non_differentiable(k)
        return log_s, kl, k

    @staticmethod
    def backward(ctx: Any, grad_s: Tensor, grad_kl: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        scores, f1, f2, alpha, noise, valid = ctx.saved_tensors
        rho, sigma, k_min, beta = ctx.constants
        k, log_gamma, log_mean = _weibull_cells(scores, f1, f2, rho, sigma, k_min)
        inverse = k.reciprocal()
        d_mean, d_gamma, d_inverse = grad_s, torch.zeros_like(k), torch.zeros_like(k)
        d_k, d_alpha = torch.zeros_like(k), None
        if noise is not None:
            d_gamma -= grad_s
            d_inverse.addcmul_(grad_s, noise)
        if alpha is not None:
            w = grad_kl * valid.to(k.dtype)  # (B, 1, T, S)
            mean = bounded_exp(log_mean).mul_(log_mean < MAX_EXPONENT)
            d_mean = d_mean + w * (beta * mean - alpha)
            d_gamma += w * alpha
            d_inverse += w * (EULER * alpha)
            d_k += w * inverse
            # One α for all queries of a key: sum over them, and its own terms once a cell.
            slope = (EULER * inverse).sub_(log_mean).add_(log_gamma).sub_(math.log(beta))
            d_alpha = (w * slope).sum(2, keepdim=True)
            d_alpha += w.sum(2, keepdim=True) * torch.digamma(alpha)
        d_f2 = None
        share = None  # of E[S] that comes from f2
        if f2 is not None:
            share = -torch.expm1(scores - log_mean)
            d_gamma += share * d_mean
            d_f2 = d_mean * share * torch.sigmoid(f2) / F.softplus(f2)
        d_inverse.addcmul_(d_gamma, digamma_1p(inverse))
        d_k.addcmul_(d_inverse, inverse * inverse, value=-1)
        d_scores = d_mean if share is None else d_mean * (1 - share)
        exponential = bounded_exp(scores).mul_(scores < MAX_EXPONENT)
        d_scores = d_scores + d_k * exponential
        d_f1 = (d_k * torch.sigmoid(f1)).mul_(rho)
        return d_scores, d_f1, d_f2, d_alpha, None, None, None


def _weibull_cells(
    scores: Tensor, f1: Tensor, f2: Tensor | None, rho: float, sigma: float, k_min: float
) -> tuple[Tensor, Tensor, Tensor]:
    """k, log Γ(1+1/k) and log E[S] of every cell."""
    k = torch.add(bounded_exp(scores), F.softplus(f1), alpha=rho).add_(k_min)
    # Of a few cells torch's one call is faster than the series' fifteen: a step of decoding.
    inverse = k.reciprocal()
    log_gamma = torch.lgamma(inverse.add_(1)) if k.numel() < FEW else log_gamma_1p(inverse)
    if f2 is None:
        return k, log_gamma, scores
    from_f2 = F.softplus(f2).log_().add_(log_gamma).add_(math.log(sigma))
    return k, log_gamma, torch.logaddexp(scores, from_f2)


def weibull_attention(
    scores: Tensor,
    f1: Tensor,
    f2: Tensor | None,
    alpha: Tensor | None,
    noise: Tensor | None,
    valid: Tensor,
    rho: float,
    sigma: float,
    k_min: float,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """BABN's inference network in one layer, from f1(h), f2(h) and the scores on:

    k = ρ·softplus(f1) + exp(scores) + k_min; λ = σ·softplus(f2) + exp(scores)/Γ(1+1/k).

    Shapes: scores, f1, f2, noise (B, H, T, S); alpha (B, H, 1, S); valid (B, 1, T, S). ``f2`` None
    is σ = 0, ``alpha`` None asks for no KL, ``noise`` None for the mean. Returns log S (or
    log E[S]), the KL to Gamma(α, β) summed over valid cells, and k, which carries no gradient.
    """
    constants = (rho, sigma, k_min, beta)
    return _WeibullAttention.apply(scores, f1, f2, alpha, noise, valid, constants)
