"""Weibull, gamma and lognormal distributions for attention weights, in log space; logistic noise.

All are pure functions of tensors in fp32 or fp64. Callers convert with ``at_least_float``. S is a
random variable, E[S] its mean, Γ the gamma function, and ψ its logarithmic derivative.

| distribution     | parameters             |
|------------------|------------------------|
| Weibull(k, λ)    | shape k, scale λ       |
| Gamma(α, β)      | shape α, rate β        |
| LogNormal(μ, s)  | location μ, width s    |
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .softmax import log_softmax

EULER = 0.5772156649015329  # γ, the Euler–Mascheroni constant
# Largest argument of ``bounded_exp``: e^15 exceeds any useful weight, and its square is finite.
MAX_EXPONENT = 15.0
MIN_LOG_WEIGHT = -1e5  # replaces −inf at blocked (query, key) pairs, so that gradients stay finite
NOISE_BOUNDS = (0.1, 0.9)  # of the uniform noise u that cut Weibull samples are made from
MIN_EXPONENTIAL = 2.0**-25  # replaces −log(1−u) = 0, whose logarithm is infinite
FEW_ELEMENTS = 2048  # below this number, torch.digamma is faster than digamma_1p's own series
MIN_ALPHA = 1e-8  # lower bound of a gamma prior's α, since log Γ(0) is infinite


def at_least_float(x: Tensor) -> Tensor:
    """Convert fp16 and bf16 to fp32. fp32 and fp64 stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def bounded_exp(x: Tensor) -> Tensor:
    """exp(min(x, MAX_EXPONENT)), which never overflows."""
    return x.clamp(max=MAX_EXPONENT).exp_()


def finite_log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last axis, with MIN_LOG_WEIGHT in place of −inf."""
    return log_softmax(logits).clamp(min=MIN_LOG_WEIGHT)


def digamma_1p(x: Tensor) -> Tensor:
    """ψ(1 + x), the derivative of log Γ(1 + x), for x ≥ 0, with an error below 1e-8.

    torch.digamma is one kernel on a GPU, but takes four times as long on a CPU. There, the
    asymptotic series gives ψ(y) at y = x + 5, and ψ(1 + x) = ψ(y) − Σ 1/(x + n) for n = 1 to 4. The
    sum is computed as 2t(2x + 5)/(t² − 1) with t = xy + 5, which takes few passes over memory.
    """
    if x.device.type != "cpu" or x.numel() < FEW_ELEMENTS:
        return torch.digamma(x + 1)
    y = x + 5
    inverse = y.reciprocal()
    square = inverse * inverse
    series = square.mul(-1 / 252).add_(1 / 120).mul_(square).sub_(1 / 12).mul_(inverse)
    series.sub_(0.5).mul_(inverse)
    t = (x * y).add_(5)
    shift = (4 * x).add_(10).mul_(t).div_(t.square_().sub_(1))
    return y.log_().add_(series).sub_(shift)


def weibull_noise(like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """The noise log(−log(1−u)) of a Weibull variable in log space, in the shape of ``like``.

    u is uniform in (low, high). Other bounds than the default cut off the tails.
    """
    if (low, high) == (0.0, 1.0):
        # −log(1−u) is an exponential variable. On the CPU, exponential_() takes four times as long.
        exponential = torch.rand_like(like).neg_().log1p_().neg_()
        return exponential.clamp_(min=MIN_EXPONENTIAL).log_()
    one_minus_u = torch.empty_like(like).uniform_(1 - high, 1 - low)
    return one_minus_u.log_().neg_().log_()


def weibull_log_sample(log_scale: Tensor, k: Tensor | float, noise: Tensor) -> Tensor:
    """The logarithm of a Weibull sample, log S = log λ + noise/k; see ``weibull_noise``."""
    return log_scale + noise / k


def weibull_log_mean(log_scale: Tensor, k: Tensor) -> Tensor:
    """The logarithm of the mean of a Weibull variable, log E[S] = log λ + log Γ(1+1/k)."""
    return log_scale + torch.lgamma(1 + 1 / k)


def weibull_variation(k: Tensor) -> Tensor:
    """Standard deviation divided by mean of a Weibull variable, √(Γ(1+2/k)/Γ(1+1/k)² − 1).

    ``cut_noise.py`` has that of samples whose tails are cut off.
    """
    return (torch.lgamma(1 + 2 / k) - 2 * torch.lgamma(1 + 1 / k)).expm1().clamp(min=0).sqrt()


def kl_weibull_gamma(k: Tensor, log_scale: Tensor, alpha: Tensor, beta: Tensor | float) -> Tensor:
    """KL(Weibull(k, λ) ‖ Gamma(α, β)), elementwise.

    KL = γα/k − α log λ + log k + βλΓ(1+1/k) − γ − 1 − α log β + log Γ(α), with γ = ``EULER``.
    """
    beta = torch.as_tensor(beta, dtype=log_scale.dtype, device=log_scale.device)
    mean = bounded_exp(weibull_log_mean(log_scale, k))
    factor_of_alpha = EULER / k - log_scale - beta.log()
    return alpha * factor_of_alpha + k.log() + beta * mean - EULER - 1 + torch.lgamma(alpha)


def lognormal_log_sample(mu: Tensor, s: Tensor | float, noise: Tensor) -> Tensor:
    """The logarithm of a lognormal sample, log S = μ + s·noise, from standard normal noise."""
    return mu + s * noise


def lognormal_log_mean(mu: Tensor, s: Tensor | float) -> Tensor:
    """The logarithm of the mean of a lognormal variable, log E[S] = μ + s²/2."""
    return mu + s * s / 2


def lognormal_variation(s: float) -> float:
    """Standard deviation divided by mean of a lognormal variable, √(exp(s²) − 1)."""
    return math.sqrt(math.expm1(s * s))


def kl_lognormal(mu: Tensor, s: Tensor, prior_mu: Tensor, prior_s: Tensor) -> Tensor:
    """KL(LogNormal(μ, s) ‖ LogNormal(μ₀, s₀)), which equals KL(Normal(μ, s²) ‖ Normal(μ₀, s₀²))."""
    ratio = s / prior_s
    return 0.5 * (ratio**2 + ((mu - prior_mu) / prior_s) ** 2 - 1) - ratio.log()


def logistic_noise(like: Tensor) -> Tensor:
    """Logistic noise log u − log(1−u) with u uniform in (0, 1), in the shape of ``like``.

    The sum of a logit x and this noise is positive with probability sigmoid(x).
    """
    return torch.rand_like(like).logit_(eps=2.0**-25)
