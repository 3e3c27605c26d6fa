"""Distances between two clouds of points: entropic and conditional transport, and the MMD.

Pure functions of tensors, in the precision of their arguments. A cloud is a discrete distribution:
points q (B, H, T, d) with masses p_Q (B, 1, T), points k (B, H, S, d) with masses p_K (B, 1, S).
Masses are 0 at padding and add up to 1; no other mask is needed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Sinkhorn: iterations between two tests of convergence, each of which waits for the device.
CHECK_EVERY = 10
# Over-relaxation (Thibault et al. 2021): where plain steps crawl, it needs a quarter of them. Where
# they do not, it is slower, so it sets in after the first test.
RELAXED = 1.8
# The length below which a vector has no direction; its gradient stays below the inverse.
MIN_NORM = 1e-6


def cosine_cost(q: Tensor, k: Tensor) -> Tensor:
    """c(q, k) = 1 − cos(q, k), (B, H, T, S)."""
    q, k = F.normalize(q, dim=-1, eps=MIN_NORM), F.normalize(k, dim=-1, eps=MIN_NORM)
    return 1 - torch.matmul(q, k.transpose(-1, -2))


def euclidean_cost(q: Tensor, k: Tensor) -> Tensor:
    """c(q, k) = ‖q − k‖², (B, H, T, S)."""
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
    """π_ε (B, H, T, S) of §2.3.2: argmin ⟨C, π⟩ − ε·H(π) with marginals p_Q and p_K.

    In log space, with the potentials f and g: π = p_Q p_K exp((f + g − C)/ε). It ends when every
    row's mass is within ``tolerance``, or after ``iterations``; the columns are exact. No gradient:
    at convergence that of ⟨C, π⟩ with π held fixed is the gradient of the entropic cost.
    """
    log_p, log_r = p_q.log().unsqueeze(-1), p_k.log().unsqueeze(-2)  # (B, 1, T, 1), (B, 1, 1, S)
    f, g = torch.zeros_like(cost[..., :1]), torch.zeros_like(cost[..., :1, :])
    widest = cost.max().item() if cost.numel() else 0.0
    heat, since = math.inf, 0  # the temperature, and for how many iterations it has been ε
    for n in range(iterations):
        if heat > epsilon:
            # It falls to ε by halves, which brings the potentials near their solution.
            heat = max(epsilon, widest * 0.5**n)
            kernel = cost / -heat
        step = RELAXED if since >= CHECK_EVERY else 1.0
        f = torch.lerp(f, _balance(kernel, g, log_r, heat, dim=-1), step)
        g = torch.lerp(g, _balance(kernel, f, log_p, heat, dim=-2), step)
        since += heat == epsilon
        if since and since % CHECK_EVERY == 0:
            # With the g that fits f, the rows of the plan have the masses p_Q·exp((f − f')/ε).
            fitting = _balance(kernel, f, log_p, heat, dim=-2)
            ratio = (f - _balance(kernel, fitting, log_r, heat, dim=-1)) / heat
            off = ratio.expm1().abs().squeeze(-1).masked_fill(p_q == 0, 0.0) * p_q
            # All rows together are right, so no single one is off by more than half the sum.
            if off.sum(dim=-1).max() < 2 * tolerance:
                break
    kernel = cost / -epsilon
    g = _balance(kernel, f, log_p, epsilon, dim=-2)
    return torch.exp(kernel + (f / epsilon + log_p) + (g / epsilon + log_r))


def _balance(kernel: Tensor, other: Tensor, log_mass: Tensor, heat: float, dim: int) -> Tensor:
    """The potential that makes rows (dim −1) or columns (−2) exact, given the other side's.

    A logsumexp in which terms below e^−80 of the largest are lifted to it: they vanish beside it
    all the same, and exponentials that underflow take processors six times as long.
    """
    terms = kernel + (other / heat + log_mass)
    largest = terms.amax(dim=dim, keepdim=True)
    total = (terms - largest).clamp_(min=-80).exp_().sum(dim=dim, keepdim=True)
    return -heat * (total.log_() + largest)


def conditional_transport(
    affinity: Tensor,  # (B, H, T, S): τ_φ(q)ᵀτ_φ(k)
    cost: Tensor,  # (B, H, T, S): c_η(q, k)
    p_q: Tensor,
    p_k: Tensor,
) -> Tensor:
    """Eq. 4, (B, H): half the mean cost of going from queries to keys, half of going back."""
    log_p, log_r = p_q.log().unsqueeze(-1), p_k.log().unsqueeze(-2)
    to_keys = torch.softmax(affinity + log_r, dim=-1)  # π_K(k_j | q_i)
    to_queries = torch.softmax(affinity + log_p, dim=-2)  # π_Q(q_i | k_j)
    there = ((to_keys * cost).sum(dim=-1) * p_q).sum(dim=-1)
    back = ((to_queries * cost).sum(dim=-2) * p_k).sum(dim=-1)
    return (there + back) / 2


@torch.no_grad()
def squared_mmd(q: Tensor, k: Tensor, p_q: Tensor, p_k: Tensor) -> Tensor:
    """A measurement: MMD² of two distributions, (B, H), with the kernel exp(−‖x − y‖²/2).

    The unbiased estimate from pairs (q_i, k_i) (Gretton et al. 2012, Lemma 6): no token is compared
    with itself, else even equal distributions of w tokens would seem about 2/w apart. It is 0 where
    every key is its query, at most 2, and may be a little below 0; one token alone gives 0. App.
    B.1.2 of the paper measures by MMD what alignment has done.
    """

    def mean(x: Tensor, y: Tensor, p: Tensor, r: Tensor) -> Tensor:
        pairs = p.transpose(1, 2) * r  # (B, T, S)
        pairs = pairs * (1 - torch.eye(*pairs.shape[1:], dtype=x.dtype, device=x.device))
        pairs = pairs / pairs.sum(dim=(1, 2), keepdim=True).clamp(min=1e-9)
        return (torch.exp(euclidean_cost(x, y) / -2) * pairs.unsqueeze(1)).sum(dim=(-2, -1))

    return mean(q, q, p_q, p_q) + mean(k, k, p_k, p_k) - 2 * mean(q, k, p_q, p_k)
