"""The inference network of one BABN layer (Zhang et al. 2021, §3) with a hand-written gradient.

Symbols are those of the paper: Φ are the scores, h is the hidden state of the upward network, f1
and f2 are linear maps, and S are the unnormalised weights. u is uniform noise, γ is Euler's
constant, Γ is the gamma function, and ψ is its logarithmic derivative.

    k = ρ·softplus(f1(h)) + exp(Φ) + k_min                                  (Weibull shape)
    λ = σ·softplus(f2(h)) + exp(Φ)/Γ(1+1/k)                                 (Weibull scale)
    E[S] = λΓ(1+1/k),  log S = log λ + ε/k with the noise ε = log(−log(1−u))
    KL = α(γ/k − log λ) + log k + βE[S] + log Γ(α) − α log β − γ − 1        (to the prior)

The settings are ρ, σ and k_min. The prior is Gamma(α, β) with shape α and rate β. One autograd
function replaces several dozen operators. It computes log Γ and ψ once per (query, key) pair,
stores seven tensors of the size of the scores instead of about twenty-four, and computes no
exponential again in the backward pass.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core.compiling import Compiled
from ...core.distributions import (
    EULER,
    MAX_EXPONENT,
    bounded_exp,
    digamma_1p,
    finite_log_softmax,
)
from ...core.softmax import softmax
from . import compiled

MAX_MEAN = math.exp(MAX_EXPONENT)  # upper bound of E[S] in the KL
# Values above this limit are taken as clamped to MAX_MEAN. The margin allows for rounding.
CLAMPED_ABOVE = (1 - 1e-6) * MAX_MEAN


class Constants(NamedTuple):
    """The settings of the inference network."""

    rho: float
    sigma: float
    k_min: float
    beta: float
    normalize: bool  # whether exp(Φ) is replaced by the softmax of the scores over the keys
    compile: bool = False  # whether to use compiled formulas in training


class Inputs(NamedTuple):
    """The tensor arguments of ``weibull_attention``."""

    scores: Tensor
    f1: Tensor
    f2: Tensor | None
    alpha: Tensor | None
    noise: Tensor | None
    valid: Tensor | None


class Saved(NamedTuple):
    """Results of the forward pass that the backward pass needs."""

    k: Tensor
    exp_scores: Tensor  # exp(Φ), bounded or normalised
    gamma: Tensor | None  # Γ(1+1/k); None without f2
    mean: Tensor  # E[S]
    # γ/k − log λ at valid pairs in the shape of α: summed over the queries if α is (B, H, 1, S)
    alpha_factor: Tensor | None


def like_alpha(x: Tensor, alpha: Tensor) -> Tensor:
    """x (B, 1|H, T, S), summed over the queries if α is the same for all of them."""
    return x if alpha.size(2) == x.size(2) else x.sum(2, keepdim=True)


def digamma_of(alpha: Tensor) -> Tensor:
    """ψ(α), by way of ψ(1 + α), which is faster."""
    return digamma_1p(alpha).sub_(alpha.reciprocal())


def weibull_forward(inputs: Inputs, constants: Constants) -> tuple[Tensor, Tensor, Saved]:
    """log S (or log E[S] without noise), the summed KL, and tensors for the backward pass."""
    scores, f1, f2, alpha, noise, valid = inputs
    rho, sigma, k_min, beta, normalize, _ = constants
    compiles = runs_compiled(inputs, constants)
    if not normalize:
        exp_scores = bounded_exp(scores)
    elif f2 is not None:
        exp_scores = softmax(scores)  # with f2, the log softmax itself is not needed
    else:
        scores = finite_log_softmax(scores)
        exp_scores = scores.exp()
    if compiles:
        return _compiled_forward(inputs, constants, exp_scores, scores)
    k = torch.add(exp_scores, F.softplus(f1), alpha=rho).add_(k_min)
    inv_k = k.reciprocal()
    log_gamma = torch.lgamma(inv_k + 1)
    gamma, mean, log_mean, alpha_factor = None, exp_scores, scores, None
    if f2 is not None:
        # E[S] = exp(Φ) + σ·softplus(f2)·Γ(1+1/k)
        gamma = log_gamma.exp()
        mean = torch.addcmul(exp_scores, F.softplus(f2), gamma, value=sigma)
        limits = torch.finfo(mean.dtype)
        log_mean = mean.clamp_(limits.tiny, limits.max).log()
        if not normalize:  # restore what bounded_exp cut off
            log_mean += F.relu(scores - MAX_EXPONENT)
    kl = mean.new_zeros(())
    if noise is None and alpha is None:  # beam search needs the mean only
        return log_mean, kl, Saved(k, exp_scores, gamma, mean, alpha_factor)
    log_lambda = log_mean - log_gamma
    log_s = log_mean if noise is None else torch.addcmul(log_lambda, noise, inv_k)
    if alpha is not None:
        rest = k.log().add_(mean.clamp(max=MAX_MEAN), alpha=beta)
        kl, alpha_factor = _kl(inv_k.mul_(EULER).sub_(log_lambda), rest, alpha, valid, beta)
    return log_s, kl, Saved(k, exp_scores, gamma, mean, alpha_factor)


def _kl(
    factor: Tensor, rest: Tensor, alpha: Tensor, valid: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """The summed KL and ``Saved.alpha_factor``; overwrites ``factor`` and ``rest``.

    ``factor`` is γ/k − log λ, and ``rest`` is log k + βE[S].
    """
    valid = valid.to(rest.dtype)  # converted once; products with a bool would convert per head
    alpha_factor = like_alpha(factor.mul_(valid), alpha)
    alpha_terms = torch.lgamma(alpha).sub_(alpha, alpha=math.log(beta)).sub_(EULER + 1)
    alpha_terms.mul_(like_alpha(valid, alpha))
    kl = alpha_terms.addcmul_(alpha, alpha_factor).sum()
    kl += rest.mul_(valid).sum()
    return kl, alpha_factor


def runs_compiled(inputs: Inputs, constants: Constants) -> bool:
    """Whether the compiled formulas are used: in training in fp32, unless there are few pairs."""
    if not constants.compile or Compiled.failed or inputs.alpha is None or inputs.noise is None:
        return False
    return inputs.f1.dtype == torch.float32 and inputs.f1.numel() >= compiled.MIN_ELEMENTS


def _formulas(constants: Constants) -> compiled.Formulas:
    return compiled.formulas(constants, MAX_MEAN, CLAMPED_ABOVE)


def _flat(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.reshape(-1) for x in tensors]


def _compiled_forward(
    inputs: Inputs, constants: Constants, exp_scores: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Saved]:
    """The rest of ``weibull_forward`` with compiled formulas."""
    given = None if inputs.f2 is not None and constants.normalize else scores
    args = _flat(exp_scores, given, inputs.f1, inputs.f2, inputs.noise)
    results = _formulas(constants).forward(*args)
    k, gamma, mean, log_s, factor, rest = (x.view(exp_scores.shape) for x in results)
    kl, alpha_factor = _kl(factor, rest, inputs.alpha, inputs.valid, constants.beta)
    return log_s, kl, Saved(k, exp_scores, gamma, mean, alpha_factor)


def _compiled_backward(
    grad_log_s: Tensor, w: Tensor, w_alpha: Tensor, inputs: Inputs, saved: Saved, consts: Constants
) -> list[Tensor | None]:
    """The gradients of the scores (before the softmax's part), f1 and f2."""
    k, exp_scores, gamma, mean, _ = saved
    args = _flat(
        grad_log_s, w.expand_as(k), w_alpha, k, exp_scores, gamma, mean,
        inputs.f1, inputs.f2, inputs.noise,
    )  # fmt: skip
    grads = _formulas(consts).backward(*args)
    return [x if x is None else x.view(k.shape) for x in grads]


def weibull_backward(
    grad_log_s: Tensor, grad_kl: Tensor, inputs: Inputs, saved: Saved, constants: Constants
) -> tuple[Tensor | None, ...]:
    """The gradients of scores, f1, f2 and alpha; None for an input that is None."""
    _, f1, f2, alpha, noise, valid = inputs
    k, exp_scores, gamma, mean, alpha_factor = saved
    rho, sigma, _, beta, normalize, _ = constants
    if runs_compiled(inputs, constants):
        w = grad_kl * valid
        grad_alpha = _grad_alpha(grad_kl, w, alpha, alpha_factor, beta)
        grad_scores, grad_f1, grad_f2 = _compiled_backward(
            grad_log_s, w, w * alpha, inputs, saved, constants
        )
        return _through_softmax(grad_scores, exp_scores, normalize), grad_f1, grad_f2, grad_alpha
    inv_k = k.reciprocal()

    # First, the gradients of log E[S], log Γ(1+1/k) and 1/k as if these were independent variables
    # of log λ = log E[S] − log Γ(1+1/k) and log S = log λ + ε/k. None means 0.
    grad_log_mean, grad_log_gamma, grad_inv_k, grad_alpha = grad_log_s, None, None, None
    if alpha is not None:
        w = grad_kl * valid  # gradient of the KL of each pair, (B, 1, T, S)
        grad_alpha = _grad_alpha(grad_kl, w, alpha, alpha_factor, beta)
        w_alpha = w * alpha
        grad_log_mean = _zero_if_clamped(mean).mul_(w * beta).sub_(w_alpha).add_(grad_log_s)
        grad_log_gamma = w_alpha.clone() if noise is None else w_alpha - grad_log_s
        grad_inv_k = w_alpha.mul_(EULER).addcmul_(w, k, value=-1)  # log k = −log(1/k)
        if noise is not None:
            grad_inv_k.addcmul_(grad_log_s, noise)
    elif noise is not None:
        grad_log_gamma, grad_inv_k = -grad_log_s, grad_log_s * noise

    grad_scores, grad_f2 = grad_log_mean, None
    if f2 is not None:
        # E[S] = exp(Φ) + σ·softplus(f2)·Γ: each term receives its share of the gradient.
        grad_scores = (exp_scores / mean).mul_(grad_log_mean)
        grad_f2 = torch.sigmoid(f2).mul_(gamma).div_(mean).mul_(grad_log_mean).mul_(sigma)
        from_mean = grad_log_mean - grad_scores
        grad_log_gamma = from_mean if grad_log_gamma is None else grad_log_gamma.add_(from_mean)

    if grad_log_gamma is None:
        grad_f1 = torch.zeros_like(f1)
    else:
        from_log_gamma = digamma_1p(inv_k).mul_(grad_log_gamma)
        grad_inv_k = from_log_gamma if grad_inv_k is None else grad_inv_k.add_(from_log_gamma)
        minus_grad_k = grad_inv_k.mul_(inv_k).mul_(inv_k)  # d(1/k)/dk = −1/k²
        exp_derivative = exp_scores if normalize else _zero_if_clamped(exp_scores)
        grad_scores = torch.addcmul(grad_scores, minus_grad_k, exp_derivative, value=-1)
        grad_f1 = minus_grad_k.mul_(torch.sigmoid(f1)).mul_(-rho)

    return _through_softmax(grad_scores, exp_scores, normalize), grad_f1, grad_f2, grad_alpha


def _grad_alpha(
    grad_kl: Tensor, w: Tensor, alpha: Tensor, alpha_factor: Tensor, beta: float
) -> Tensor:
    """The gradient of α; w is the gradient of the KL of each pair."""
    terms = digamma_of(alpha).sub_(math.log(beta))
    return terms.mul_(like_alpha(w, alpha)).addcmul_(grad_kl, alpha_factor)


def _through_softmax(grad: Tensor, exp_scores: Tensor, normalize: bool) -> Tensor:
    """The gradient of the scores; with ``normalize``, from that of their log softmax."""
    if not normalize:
        return grad
    return torch.addcmul(grad, exp_scores, grad.sum(dim=-1, keepdim=True), value=-1)


def _zero_if_clamped(x: Tensor) -> Tensor:
    """x, with 0 where the forward pass clamped it, because the gradient is 0 there.

    This is one fused operator. A comparison and a product would take two passes over memory.
    """
    return torch.ops.aten.hardtanh_backward(x, x, -math.inf, CLAMPED_ABOVE)


class _WeibullAttention(torch.autograd.Function):
    """``weibull_attention`` with the gradient of ``weibull_backward``."""

    @staticmethod
    def forward(ctx: Any, constants: Constants, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        log_s, kl, saved = weibull_forward(Inputs(*inputs), constants)
        ctx.save_for_backward(*inputs[1:], *saved)  # the backward pass does not need the scores
        ctx.constants = constants
        ctx.mark_non_differentiable(saved.k)
        return log_s, kl, saved.k

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_log_s: Tensor, grad_kl: Tensor, _: Any
    ) -> tuple[Tensor | None, ...]:
        inputs, saved = Inputs(None, *ctx.saved_tensors[:5]), Saved(*ctx.saved_tensors[5:])
        grads = weibull_backward(grad_log_s, grad_kl, inputs, saved, ctx.constants)
        return None, *grads, None, None


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
    compile: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log S (or log E[S]), the KL summed over valid pairs, and k, which has no gradient.

    Shapes: scores, f1, f2, noise (B, H, T, S); alpha (B, H, T|1, S); valid (B, 1, T, S). ``f1`` and
    ``f2`` are f1(h) and f2(h); ``f2`` is None if σ = 0. If ``alpha`` is None, no KL is computed and
    ``valid`` is not needed. If ``noise`` is None, the mean replaces the sample. With ``normalize``,
    exp(Φ) is replaced by the softmax of the scores over the keys, and blocked pairs have the score
    −inf. ``compile`` uses ``compiled.py`` in training. The module docstring has the equations.
    """
    constants = Constants(rho, sigma, k_min, beta, normalize, compile)
    inputs = Inputs(scores, f1, f2, alpha, noise, valid)
    if torch.is_grad_enabled():
        return _WeibullAttention.apply(constants, *inputs)
    log_s, kl, saved = weibull_forward(inputs, constants)
    return log_s, kl, saved.k
