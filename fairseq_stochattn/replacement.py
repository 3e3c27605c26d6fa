"""Replaced tokens (ELECTRA, Clark et al. 2020, §2): the generator's guesses, samples of them, and
where these go.

Pure functions over a batch of tokens (B, T), n of them masked; whatever is of the masked positions
alone, such as the generator's logits (n, V), has them in the order of rows, then columns. The
softmax p of these logits is made once, for the loss and for the samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_stochattn.distributions import at_least_float

# Tokens of the vocabulary that a sample passes over at once while it is looked for.
BLOCK = 128


@torch.no_grad()
def probabilities(logits: Tensor) -> Tensor:
    """softmax(logits) (n, V), in fp32 or better, without a graph."""
    return logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class _NegativeLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, p: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(p, targets)
        ctx.dtype = logits.dtype
        highest, at = at_least_float(logits).max(dim=-1, keepdim=True)
        log_z = highest - p.gather(1, at).log()  # (n, 1)
        return (log_z - logits.gather(1, targets.unsqueeze(1))).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        p, targets = ctx.saved_tensors
        slope = p * gradient
        slope.scatter_add_(1, targets.unsqueeze(1), -gradient.expand(len(p), 1))
        return slope.to(ctx.dtype), None, None


def negative_log_likelihood(logits: Tensor, p: Tensor, targets: Tensor) -> Tensor:
    """−Σ log softmax(logits) at the targets (n,), of logits (n, V) whose ``probabilities`` are p.

    A cross-entropy that stores one tensor of the size of the logits, which is there already.
    """
    return _NegativeLogLikelihood.apply(logits, p, targets)


@torch.no_grad()
def sample_tokens(logits: Tensor, p: Tensor, chance: Tensor, never: int) -> Tensor:
    """(n,): x̂ ~ softmax(logits), given p = ``probabilities(logits)`` and ``chance`` (n,), uniform
    on [0, 1), in double precision: one number a sample, where Gumbel's way wants one a token of the
    vocabulary.

    The token ``never`` is left out. That is padding, which in the middle of a sentence would hide
    a position and move all that follow.
    """
    found = _invert(p, chance, never)
    # Where that token has nearly all of the mass, p has lost its grip on the others.
    lost = (p[:, never] > 0.5).nonzero().squeeze(1)
    if len(lost) > 0:
        others = at_least_float(logits[lost])
        others[:, never] = -torch.inf
        found[lost] = _invert(probabilities(others), chance[lost], never)
    return found


def _invert(p: Tensor, chance: Tensor, never: int) -> Tensor:
    """The token at which the distribution function of p (n, V), without ``never``, passes
    ``chance``: first the block of tokens, by the blocks' sums, then the token in it."""
    size = p.size(1)
    whole = size // BLOCK
    blocks = p[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).sum(dim=2)
    sums = torch.cat([blocks, p[:, whole * BLOCK :].sum(dim=1, keepdim=True)], dim=1).double()
    start = never // BLOCK * BLOCK
    sums[:, never // BLOCK] = p[:, start:never].sum(dim=1).double()
    sums[:, never // BLOCK] += p[:, never + 1 : start + BLOCK].sum(dim=1)
    reached = sums.cumsum(dim=1)
    goal = chance.unsqueeze(1) * reached[:, -1:]
    block = torch.searchsorted(reached, goal, right=True).clamp_(max=whole)  # (n, 1)
    # How far into the block; by share, since its sum was rounded otherwise.
    sum_there = sums.gather(1, block)
    share = 1 - (reached.gather(1, block) - goal) / sum_there
    tokens = block * BLOCK + torch.arange(BLOCK, device=p.device)  # (n, BLOCK)
    can_be = (tokens < size) & (tokens != never)
    upto = (p.gather(1, tokens.clamp(max=size - 1)).double() * can_be).cumsum(dim=1)
    passed = upto <= share.clamp(0, 1 - 1e-12) * upto[:, -1:]
    place = passed.sum(dim=1, keepdim=True).clamp_(max=BLOCK - 1)
    return tokens.gather(1, place).squeeze(1).clamp_(max=size - 1)


def put_tokens(tokens: Tensor, masked: Tensor, found: Tensor) -> Tensor:
    """The tokens (B, T) with those found (n,) at the masked positions."""
    return tokens.masked_scatter(masked, found)
