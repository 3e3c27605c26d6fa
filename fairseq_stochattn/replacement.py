"""Replaced tokens (ELECTRA, Clark et al. 2020, §2): the generator's samples, and where they go.

Pure functions over a batch of tokens (B, T), n of them masked; whatever is of the masked positions
alone, such as the generator's logits (n, V), has them in the order of rows, then columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gumbel_noise(
    shape: tuple[int, ...], device: torch.device, random: torch.Generator | None = None
) -> Tensor:
    """−log(−log u), u ~ U(0, 1), in fp32."""
    noise = torch.rand(shape, device=device, generator=random)
    return noise.log_().neg_().log_().neg_()


@torch.no_grad()
def sample_tokens(logits: Tensor, noise: Tensor, never: int) -> Tensor:
    """(n,): x̂ ~ softmax(logits) by Gumbel-max, in the noise's precision.

    The token ``never`` is left out. That is padding, which in the middle of a sentence would hide
    a position and move all that follow.
    """
    scores = noise + logits
    scores[:, never] = -torch.inf
    return scores.argmax(dim=-1)


def put_tokens(tokens: Tensor, masked: Tensor, found: Tensor) -> Tensor:
    """The tokens (B, T) with those found (n,) at the masked positions."""
    return tokens.masked_scatter(masked, found)
