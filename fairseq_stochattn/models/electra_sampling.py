"""ELECTRA's generator (Clark et al. 2020, §2): its loss, and the replacement tokens it samples.

Shapes: the tokens are (B, T), and n of them are masked. The generator's logits at the masked tokens
are (n, V), in the order of rows, then columns. The softmax p of the logits is computed once and
used for the loss and the samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.distributions import at_least_float

# Sampling first finds a block of this many tokens of the vocabulary, then the token in the block.
BLOCK = 128


@torch.no_grad()
def probabilities(logits: Tensor) -> Tensor:
    """Return softmax(logits), (n, V), at least in fp32 and without gradient."""
    return logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class _NegativeLogLikelihood(torch.autograd.Function):
    """The generator's loss with the gradient ∂/∂logits = p − one_hot(target)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, p: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(p, targets)
        ctx.dtype = logits.dtype
        highest, at = at_least_float(logits).max(dim=-1, keepdim=True)
        log_z = highest - p.gather(1, at).log()  # (n, 1): log Σ exp(logits)
        return (log_z - logits.gather(1, targets.unsqueeze(1))).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        p, targets = ctx.saved_tensors
        grad_logits = p * grad_output
        grad_logits.scatter_add_(1, targets.unsqueeze(1), -grad_output.expand(len(p), 1))
        return grad_logits.to(ctx.dtype), None, None


def negative_log_likelihood(logits: Tensor, p: Tensor, targets: Tensor) -> Tensor:
    """Return −Σ log softmax(logits)[targets], a scalar.

    Shapes: logits (n, V), p = ``probabilities(logits)`` (n, V), targets (n,). Unlike torch's
    cross-entropy, this function needs no additional memory of size (n, V), since p exists already.
    """
    return _NegativeLogLikelihood.apply(logits, p, targets)


@torch.no_grad()
def sample_tokens(logits: Tensor, p: Tensor, chance: Tensor, excluded: int) -> Tensor:
    """Sample tokens (n,) from softmax(logits) without the token ``excluded``.

    Shapes: logits (n, V), p = ``probabilities(logits)`` (n, V). ``chance`` (n,) holds random
    numbers in double precision, uniform on [0, 1). Inverting the distribution function needs one
    random number per sample, while the Gumbel-max trick would need V. The excluded token is
    padding: inside a sentence it would mask its position and shift the position embeddings of all
    later tokens.
    """
    samples = _invert(p, chance, excluded)
    # If the excluded token has most of the mass, p is too inaccurate for the other tokens, so their
    # softmax is computed again without it.
    inaccurate = (p[:, excluded] > 0.5).nonzero().squeeze(1)
    if len(inaccurate) > 0:
        others = at_least_float(logits[inaccurate])
        others[:, excluded] = -torch.inf
        samples[inaccurate] = _invert(probabilities(others), chance[inaccurate], excluded)
    return samples


def _invert(p: Tensor, chance: Tensor, excluded: int) -> Tensor:
    """Return the first tokens (n,) where the distribution function of p (n, V) exceeds ``chance``.

    p is renormalised without the token ``excluded``. The cumulative sum over blocks of ``BLOCK``
    tokens determines the block, then the cumulative sum inside the block determines the token.
    """
    size = p.size(1)
    whole = size // BLOCK
    blocks = p[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).sum(dim=2)
    sums = torch.cat([blocks, p[:, whole * BLOCK :].sum(dim=1, keepdim=True)], dim=1).double()
    start = excluded // BLOCK * BLOCK
    sums[:, excluded // BLOCK] = p[:, start:excluded].sum(dim=1).double()
    sums[:, excluded // BLOCK] += p[:, excluded + 1 : start + BLOCK].sum(dim=1)
    cumulative = sums.cumsum(dim=1)
    goal = chance.unsqueeze(1) * cumulative[:, -1:]
    block = torch.searchsorted(cumulative, goal, right=True).clamp_(max=whole)  # (n, 1)
    # The goal is converted to a share of the block's sum, because the sum over the block's tokens
    # below is rounded differently.
    share = 1 - (cumulative.gather(1, block) - goal) / sums.gather(1, block)
    tokens = block * BLOCK + torch.arange(BLOCK, device=p.device)  # (n, BLOCK)
    allowed = (tokens < size) & (tokens != excluded)
    within = (p.gather(1, tokens.clamp(max=size - 1)).double() * allowed).cumsum(dim=1)
    passed = within <= share.clamp(0, 1 - 1e-12) * within[:, -1:]
    index = passed.sum(dim=1, keepdim=True).clamp_(max=BLOCK - 1)
    return tokens.gather(1, index).squeeze(1).clamp_(max=size - 1)


def replace_tokens(tokens: Tensor, masked: Tensor, samples: Tensor) -> Tensor:
    """Return ``tokens`` (B, T) with ``samples`` (n,) where ``masked`` (B, T) is True."""
    return tokens.masked_scatter(masked, samples)
