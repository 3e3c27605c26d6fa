"""Distances between two discrete distributions: entropic and conditional transport, and the MMD.

All are pure functions of tensors, in the precision of their arguments. One distribution has the
points q (B, H, T, d) with masses p_Q (B, 1, T), the other the points k (B, H, S, d) with masses p_K
(B, 1, S). Masses are 0 at padding and add up to 1, so no other mask is needed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.device import reading_is_free

# Sinkhorn iterations between two tests of convergence.
CHECK_EVERY = 10
# Step size of over-relaxation (Thibault et al. 2021). If steps of size 1 converge slowly, it takes
# a quarter of the iterations. Otherwise it is slower, so it is used only after the first test.
RELAXATION = 1.8
# Vectors below this length are not scaled to length 1. This bounds the gradient of the cosine.
MIN_NORM = 1e-6


def cosine_cost(q: Tensor, k: Tensor) -> Tensor:
    """The cosine cost c(q, k) = 1 − cos(q, k), (B, H, T, S)."""
    q, k = F.normalize(q, dim=-1, eps=MIN_NORM), F.normalize(k, dim=-1, eps=MIN_NORM)
    return 1 - torch.matmul(q, k.transpose(-1, -2))


def euclidean_cost(q: Tensor, k: Tensor) -> Tensor:
    """The squared Euclidean cost c(q, k) = ‖q − k‖², (B, H, T, S)."""
    squares = q.square().sum(-1).unsqueeze(-1) + k.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * torch.matmul(q, k.transpose(-1, -2))).clamp(min=0)


@torch.no_grad()
def sinkhorn(
    cost: Tensor,  # (B, H, T, S)
    p_q: Tensor,  # (B, 1, T)
    p_k: Tensor,  # (B, 1, S)
    epsilon: float,
    iterations: int,
    tolerance: float = 1e-4,
) -> Tensor:
    """The entropic transport plan π_ε (B, H, T, S) of §2.3.2, by Sinkhorn's algorithm.

    π_ε = argmin ⟨C, π⟩ − ε·H(π) subject to the marginals p_Q and p_K, where C is the cost and H the
    entropy. In log space, with the potentials f and g: π = p_Q p_K exp((f + g − C)/ε). The
    iteration stops when the mass of every row is within ``tolerance`` of p_Q, or after
    ``iterations``; on a GPU only then, since a test would be a wait. The column masses are exact.
    The plan has no gradient and needs none, because at convergence the gradient of ⟨C, π⟩ with
    constant π equals that of the entropic cost.
    """
    log_p_q, log_p_k = p_q.log().unsqueeze(-1), p_k.log().unsqueeze(-2)  # (B,1,T,1), (B,1,1,S)
    f, g = torch.zeros_like(cost[..., :1]), torch.zeros_like(cost[..., :1, :])
    if not reading_is_free(cost):
        f = _all_iterations(cost, log_p_q, log_p_k, epsilon, iterations)
        return _plan(cost, f, log_p_q, log_p_k, epsilon)
    max_cost = cost.max().item() if cost.numel() else 0.0
    temperature, iterations_at_epsilon = math.inf, 0
    for n in range(iterations):
        if temperature > epsilon:
            # Halving the temperature down to ε brings the potentials close to the solution quickly.
            temperature = max(epsilon, max_cost * 0.5**n)
            kernel = cost / -temperature
        step = RELAXATION if iterations_at_epsilon >= CHECK_EVERY else 1.0
        f = torch.lerp(f, _potential(kernel, g, log_p_k, temperature, dim=-1), step)
        g = torch.lerp(g, _potential(kernel, f, log_p_q, temperature, dim=-2), step)
        iterations_at_epsilon += temperature == epsilon
        if iterations_at_epsilon and iterations_at_epsilon % CHECK_EVERY == 0:
            # With the g that makes the columns exact for this f, and the f' that would then make
            # the rows exact, the rows of the plan have the masses p_Q·exp((f − f')/ε).
            exact_g = _potential(kernel, f, log_p_q, temperature, dim=-2)
            log_ratio = (
                f - _potential(kernel, exact_g, log_p_k, temperature, dim=-1)
            ) / temperature
            error = log_ratio.expm1().abs().squeeze(-1).masked_fill(p_q == 0, 0.0) * p_q
            # The signed errors add up to 0, so none exceeds half the sum of the absolute errors.
            if error.sum(dim=-1).max() < 2 * tolerance:
                break
    return _plan(cost, f, log_p_q, log_p_k, epsilon)


def _plan(cost: Tensor, f: Tensor, log_p_q: Tensor, log_p_k: Tensor, epsilon: float) -> Tensor:
    """The plan (B, H, T, S) of the potential f, with exact column masses."""
    kernel = cost / -epsilon
    g = _potential(kernel, f, log_p_q, epsilon, dim=-2)
    return torch.exp(kernel + (f / epsilon + log_p_q) + (g / epsilon + log_p_k))


def _all_iterations(
    cost: Tensor, log_p_q: Tensor, log_p_k: Tensor, epsilon: float, iterations: int
) -> Tensor:
    """The potential f after all iterations of ``sinkhorn``, none of which reads a value."""
    f, g = torch.zeros_like(cost[..., :1]), torch.zeros_like(cost[..., :1, :])
    max_cost, at_epsilon = cost.amax(), torch.zeros((), device=cost.device)
    for n in range(iterations):
        temperature = (max_cost * 0.5**n).clamp(min=epsilon)
        kernel = cost / -temperature
        step = (at_epsilon >= CHECK_EVERY).to(f.dtype) * (RELAXATION - 1) + 1
        f = torch.lerp(f, _potential(kernel, g, log_p_k, temperature, dim=-1), step)
        g = torch.lerp(g, _potential(kernel, f, log_p_q, temperature, dim=-2), step)
        at_epsilon += temperature <= epsilon
    return f


def _potential(
    kernel: Tensor, other: Tensor, log_mass: Tensor, temperature: float | Tensor, dim: int
) -> Tensor:
    """The potential that makes the rows (dim −1) or the columns (dim −2) of the plan exact.

    ``other`` is the potential of the other axis, and ``log_mass`` the logarithm of its masses. This
    is a logsumexp in which terms below e^−80 times the largest term are raised to that value. They
    are too small to change the sum, but underflowing exponentials are six times slower on a CPU.
    """
    terms = kernel + (other / temperature + log_mass)
    largest = terms.amax(dim=dim, keepdim=True)
    total = (terms - largest).clamp_(min=-80).exp_().sum(dim=dim, keepdim=True)
    return -temperature * (total.log_() + largest)


def conditional_transport(
    affinity: Tensor,  # (B, H, T, S): τ_φ(q)ᵀτ_φ(k) from the navigator network τ_φ
    cost: Tensor,  # (B, H, T, S): c_η(q, k) from the critic network τ_η
    p_q: Tensor,
    p_k: Tensor,
) -> Tensor:
    """Eq. 4, (B, H): the mean of the expected costs of transport from q to k and from k to q."""
    log_p_q, log_p_k = p_q.log().unsqueeze(-1), p_k.log().unsqueeze(-2)
    to_keys = torch.softmax(affinity + log_p_k, dim=-1)  # π_K(k_j | q_i)
    to_queries = torch.softmax(affinity + log_p_q, dim=-2)  # π_Q(q_i | k_j)
    forward_cost = ((to_keys * cost).sum(dim=-1) * p_q).sum(dim=-1)
    backward_cost = ((to_queries * cost).sum(dim=-2) * p_k).sum(dim=-1)
    return (forward_cost + backward_cost) / 2


@torch.no_grad()
def squared_mmd(q: Tensor, k: Tensor, p_q: Tensor, p_k: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two distributions, (B, H), without gradient.

    The kernel is exp(−‖x − y‖²/2). This is the unbiased estimate from pairs (q_i, k_i) (Gretton et
    al. 2012, Lemma 6), which compares no token with itself. The biased estimate would be about 2/w
    for two samples of w tokens from one distribution. The estimate is 0 if every key equals its
    query, is at most 2, can be slightly negative, and is 0 for a single token. App. B.1.2 of the
    paper measures the effect of alignment by the MMD.
    """

    def mean(x: Tensor, y: Tensor, p_x: Tensor, p_y: Tensor) -> Tensor:
        """The mean kernel over all pairs of different tokens, (B, H)."""
        pairs = p_x.transpose(1, 2) * p_y  # (B, T, S)
        pairs = pairs * (1 - torch.eye(*pairs.shape[1:], dtype=x.dtype, device=x.device))
        pairs = pairs / pairs.sum(dim=(1, 2), keepdim=True).clamp(min=1e-9)
        return (torch.exp(euclidean_cost(x, y) / -2) * pairs.unsqueeze(1)).sum(dim=(-2, -1))

    return mean(q, q, p_q, p_q) + mean(k, k, p_k, p_k) - 2 * mean(q, k, p_q, p_k)
