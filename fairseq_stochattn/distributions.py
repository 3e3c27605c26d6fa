"""Weibull, gamma and lognormal, as attention weights need them: samples, means, KLs, in log space;
and the noise of binary masks.

Pure functions of tensors. They compute in fp32 or better; callers hand over ``at_least_float``
tensors. k is a Weibull's shape and λ its scale, α and β a gamma's shape and rate, μ and s a
lognormal's location and width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EULER = 0.5772156649015329  # γ
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
# Inside exponentials logits end here: e^15 is beyond any weight, and its square is still finite.
MAX_EXPONENT = 15.0
LEAST_SCORE = -1e5  # stands for −inf in cells that must not be seen
MIN_ALPHA = 1e-8


def at_least_float(x: Tensor) -> Tensor:
    """fp16 and bf16 become fp32, doubles stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def bounded_exp(x: Tensor) -> Tensor:
    return x.clamp(max=MAX_EXPONENT).exp_()


def finite_log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last axis, a number in cells of −inf too."""
    return logits.log_softmax(dim=-1).clamp(min=LEAST_SCORE)


def log_gamma_1p(x: Tensor) -> Tensor:
    """log Γ(1 + x) for x ≥ 0, to 1e-8: Stirling's series at y = x + 5, shifted back.

    The shift divides by (x+1)(x+2)(x+3)(x+4) = t² − 1 with t = xy + 5; few passes over memory.
    """
    y = x + 5
    shift = (x * y).add_(5).square_().sub_(1).log_()
    inverse = y.reciprocal()
    square = inverse * inverse
    series = square.mul(1 / 1260).sub_(1 / 360).mul_(square).add_(1 / 12).mul_(inverse)
    # (y − ½) log y − y = (y − ½)(log y − 1) − ½
    stirling = series.addcmul_(y.log().sub_(1), y - 0.5).add_(HALF_LOG_TAU - 0.5)
    return stirling.sub_(shift)


def digamma_1p(x: Tensor) -> Tensor:
    """ψ(1 + x) for x ≥ 0, to 1e-8: the derivative of ``log_gamma_1p``'s formula."""
    y = x + 5
    inverse = y.reciprocal()
    square = inverse * inverse
    series = square.mul(-1 / 252).add_(1 / 120).mul_(square).sub_(1 / 12).mul_(inverse)
    series.sub_(0.5).mul_(inverse)
    t = (x * y).add_(5)
    shift = (4 * x).add_(10).mul_(t).div_(t.square_().sub_(1))  # 2t(2x + 5)/(t² − 1)
    return y.log_().add_(series).sub_(shift)


def weibull_noise(like: Tensor, low: float = 0.1, high: float = 0.9) -> Tensor:
    """log(−log(1−u)), u ~ U(low, high): the noise of a Weibull in log space, its tails cut."""
    one_minus_u = torch.empty_like(like).uniform_(1 - high, 1 - low)
    return one_minus_u.log_().neg_().log_()


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
