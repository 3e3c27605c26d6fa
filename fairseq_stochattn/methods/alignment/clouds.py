"""Queries and keys as the distances of alignment attention receive them.

Two points of Zhang et al. 2021 are made explicit here. In Eq. 1, W_Q and W_K minimise the distance;
so by default its gradient stops at the input of these projections instead of changing all layers
below. And a distance should not fall because all points shrink to one; so by default it does not
see the common scale and centre of queries and keys.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ...core.context import AttentionContext
from ...core.distributions import at_least_float
from .tokens import TokenSet

logger = logging.getLogger(__name__)
_warned = False

# Below this root mean square, queries and keys are not scaled. This bounds the gradient.
MIN_SCALE = 1e-4


def clouds_of(context: AttentionContext, through: str) -> tuple[Tensor, Tensor]:
    """The queries (B, H, T, d) and keys (B, H, S, d) of a layer, in fp32 or better.

    If ``through`` is "projections", their gradients reach W_Q and W_K only.
    """
    q, k = context.q, context.k
    if through == "projections" and torch.is_grad_enabled() and q.requires_grad:
        if context.projected is None:
            _warn_once()
        else:
            q, k = context.projected()
    return at_least_float(q), at_least_float(k)


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "alignment: this attention does not show its projections, so the gradient of the loss "
            "also reaches the layers below"
        )


def standardized(q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> tuple[Tensor, Tensor]:
    """Return q (B, H, T, d) and k (B, H, S, d), moved and scaled together in every sentence.

    Afterwards all queries and keys of a sentence and head together have the mean 0, and their
    entries have the mean square 1. The differences between queries and keys remain, as does the
    ratio of their spreads.
    """
    p_q, p_k = queries.mass.unsqueeze(-1), keys.mass.unsqueeze(-1)  # (B, 1, T, 1), (B, 1, S, 1)

    def mean(x: Tensor, y: Tensor) -> Tensor:
        """The mean of both over the tokens, (B, H, 1, d)."""
        total = (x * p_q).sum(dim=2, keepdim=True) + (y * p_k).sum(dim=2, keepdim=True)
        return total / 2

    centre = mean(q, k)
    q, k = q - centre, k - centre
    square = mean(q.square(), k.square()).mean(dim=-1, keepdim=True)  # (B, H, 1, 1)
    scale = square.clamp(min=MIN_SCALE**2).rsqrt()
    return q * scale, k * scale
