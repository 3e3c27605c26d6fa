"""BABN's inference network in one layer, with its gradient written out.

One autograd function instead of the five dozen operators of the equations: one log Γ and one ψ a
cell, and seven tensors of the size of the logits kept instead of two dozen, from which the backward
makes no exponential again.
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
    finite_log_softmax,
    log_gamma_1p,
)

FEW = 1 << 14  # cells: below, torch's one lgamma is faster than the series' fifteen calls
MAX_MEAN = math.exp(MAX_EXPONENT)  # of E[S] in the KL
BOUNDED = (1 - 1e-6) * MAX_MEAN  # who is above has met the bound, whatever its last bit

Constants = tuple[float, float, float, float, bool]  # ρ, σ, k_min, β, normalize


class Given(NamedTuple):
    """What the network starts from: ``weibull_attention``'s tensors."""

    scores: Tensor
    f1: Tensor
    f2: Tensor | None
    alpha: Tensor | None
    noise: Tensor | None
    valid: Tensor | None


class Kept(NamedTuple):
    """What the backward needs of the forward."""

    k: Tensor
    exponential: Tensor  # exp(scores), bounded
    gamma: Tensor | None  # Γ(1+1/k), where there is an f2
    mean: Tensor  # E[S]
    of_alpha: Tensor | None  # (B, H, 1, S): what the KL multiplies α by


def infer(given: Given, constants: Constants) -> tuple[Tensor, Tensor, Kept]:
    """log S and the KL; of cells ``weibull_attention``'s."""
    scores, f1, f2, alpha, noise, valid = given
    rho, sigma, k_min, beta, normalize = constants
    if not normalize:
        exponential = bounded_exp(scores)
    elif f2 is not None:
        exponential = scores.softmax(dim=-1)  # their logarithms are not wanted
    else:
        scores = finite_log_softmax(scores)
        exponential = scores.exp()
    k = torch.add(exponential, F.softplus(f1), alpha=rho).add_(k_min)
    inverse = k.reciprocal()
    log_gamma = torch.lgamma(inverse + 1) if k.numel() < FEW else log_gamma_1p(inverse)
    gamma, mean, log_mean, of_alpha = None, exponential, scores, None
    if f2 is not None:
        gamma = log_gamma.exp()
        mean = torch.addcmul(exponential, F.softplus(f2), gamma, value=sigma)
        limits = torch.finfo(mean.dtype)
        log_mean = mean.clamp_(limits.tiny, limits.max).log()
        if not normalize:  # what the bound took
            log_mean += F.relu(scores - MAX_EXPONENT)
    kl = mean.new_zeros(())
    if noise is None and alpha is None:  # the mean alone: beam search wants nothing else
        return log_mean, kl, Kept(k, exponential, gamma, mean, of_alpha)
    log_scale = log_mean - log_gamma
    log_s = log_mean if noise is None else torch.addcmul(log_scale, noise, inverse)
    if alpha is not None:
        valid = valid.to(k.dtype)  # a bool would be converted for every head
        # One α for all queries of a key: its terms are summed over them first.
        of_alpha = inverse.mul_(EULER).sub_(log_scale).mul_(valid).sum(2, keepdim=True)
        of_key = torch.lgamma(alpha) - alpha * math.log(beta) - (EULER + 1)  # (B, H, 1, S)
        kl = (alpha * of_alpha + of_key * valid.sum(2, keepdim=True)).sum()
        kl += k.log().add_(mean.clamp(max=MAX_MEAN), alpha=beta).mul_(valid).sum()
    return log_s, kl, Kept(k, exponential, gamma, mean, of_alpha)


def infer_backward(
    grad_s: Tensor, grad_kl: Tensor, given: Given, kept: Kept, constants: Constants
) -> tuple[Tensor | None, ...]:
    """The gradients of scores, f1, f2 and alpha."""
    _, f1, f2, alpha, noise, valid = given
    k, exponential, gamma, mean, of_alpha = kept
    rho, sigma, _, beta, normalize = constants
    inverse = k.reciprocal()
    # By log E[S], log Γ(1+1/k) and 1/k; what is None is 0.
    d_mean, d_gamma, d_inverse, d_alpha = grad_s, None, None, None
    if alpha is not None:
        w = grad_kl * valid  # (B, 1, T, S)
        of_key = torch.digamma(alpha) - math.log(beta)
        d_alpha = grad_kl * of_alpha + w.sum(2, keepdim=True) * of_key
        w_alpha = w * alpha
        d_mean = _below_bound(mean).mul_(w * beta).sub_(w_alpha).add_(grad_s)
        d_gamma = w_alpha.clone() if noise is None else w_alpha - grad_s
        d_inverse = w_alpha.mul_(EULER).addcmul_(w, k, value=-1)  # log k is −log(1/k)
        if noise is not None:
            d_inverse.addcmul_(grad_s, noise)
    elif noise is not None:
        d_gamma, d_inverse = -grad_s, grad_s * noise
    d_scores, d_f2 = d_mean, None
    if f2 is not None:
        # Of E[S] one part is exp(scores), the other σ·softplus(f2)·Γ.
        d_scores = (exponential / mean).mul_(d_mean)
        d_f2 = torch.sigmoid(f2).mul_(gamma).div_(mean).mul_(d_mean).mul_(sigma)
        by_gamma = d_mean - d_scores
        d_gamma = by_gamma if d_gamma is None else d_gamma.add_(by_gamma)
    if d_gamma is None:
        d_f1 = torch.zeros_like(f1)
    else:
        of_psi = digamma_1p(inverse).mul_(d_gamma)
        d_inverse = of_psi if d_inverse is None else d_inverse.add_(of_psi)
        minus_d_k = d_inverse.mul_(inverse).mul_(inverse)
        slope = exponential if normalize else _below_bound(exponential)
        d_scores = torch.addcmul(d_scores, minus_d_k, slope, value=-1)
        d_f1 = minus_d_k.mul_(torch.sigmoid(f1)).mul_(-rho)
    if normalize:
        total = d_scores.sum(dim=-1, keepdim=True)
        d_scores = torch.addcmul(d_scores, exponential, total, value=-1)
    return d_scores, d_f1, d_f2, d_alpha


def _below_bound(x: Tensor) -> Tensor:
    """x where the bound has left it a slope, else 0: faster than a comparison and a product."""
    return torch.ops.aten.hardtanh_backward(x, x, -math.inf, BOUNDED)


class _WeibullAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, constants: Constants, *given: Tensor | None) -> tuple[Tensor, ...]:
        log_s, kl, kept = infer(Given(*given), constants)
        ctx.save_for_backward(*given[1:], *kept)  # all but the scores
        ctx.constants = constants
        ctx.mark_non_differentiable(kept.k)
        return log_s, kl, kept.k

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_s: Tensor, grad_kl: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        given, kept = Given(None, *ctx.saved_tensors[:5]), Kept(*ctx.saved_tensors[5:])
        gradients = infer_backward(grad_s, grad_kl, given, kept, ctx.constants)
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
    normalize: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """BABN's inference network in one layer, from f1(h), f2(h) and the scores on:

    k = ρ·softplus(f1) + exp(scores) + k_min; λ = σ·softplus(f2) + exp(scores)/Γ(1+1/k).

    Shapes: scores, f1, f2, noise (B, H, T, S); alpha (B, H, 1, S); valid (B, 1, T, S). ``f2`` None
    is σ = 0, ``alpha`` None asks for no KL and needs no ``valid``, ``noise`` None for the mean.
    With ``normalize`` their softmax over the keys stands for exp(scores); −inf where a key must not
    be seen. Returns log S (or log E[S]), the KL to Gamma(α, β) summed over valid cells, and k,
    which carries no gradient.
    """
    constants = (rho, sigma, k_min, beta, normalize)
    given = Given(scores, f1, f2, alpha, noise, valid)
    if torch.is_grad_enabled():
        return _WeibullAttention.apply(constants, *given)
    log_s, kl, kept = infer(given, constants)
    return log_s, kl, kept.k
