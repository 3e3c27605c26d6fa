"""How much heads differ: the regularisers that repulsive attention is compared with, and Dist.

Pure functions over H heads of d numbers each; leading dimensions are independent systems. Pairs
are those of two different heads, so 1 is the cosine of heads that are all alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_stochattn.distributions import at_least_float

_TINY = 1e-24  # the squared length of what counts as zero


def mean_cosine(x: Tensor) -> Tensor:
    """x (…, H, d) → (…): the cosine of two heads, averaged over pairs (Li et al. 2018).

    A head of zeros has cosine 0 with every other.
    """
    gram = _gram(x)
    lengths = gram.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY).sqrt()  # (…, H)
    cosines = gram / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    oneself = cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (cosines.sum(dim=(-2, -1)) - oneself) / _pairs(x)


def frobenius(a: Tensor) -> Tensor:
    """Weights of H heads over S tokens, (…, H, S) → ‖A Aᵀ − I‖²_F (…) (Lin et al. 2017, Eq. 8)."""
    gram = _gram(a)
    identity = torch.eye(a.size(-2), dtype=gram.dtype, device=gram.device)
    return (gram - identity).square().sum(dim=(-2, -1))


def mean_distance(x: Tensor) -> Tensor:
    """x (…, H, d) → (…): Dist, ‖x_i − x_j‖ averaged over pairs (An et al. 2020, Table 1)."""
    x = at_least_float(x)
    # By differences: from products, small distances of long vectors would be rounded away.
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")  # (…, H, H)
    return distances.sum(dim=(-2, -1)) / _pairs(x)


def _gram(x: Tensor) -> Tensor:
    """X Xᵀ (…, H, H), in fp32 under autocast too."""
    x = at_least_float(x)
    with torch.autocast(x.device.type, enabled=False):
        return torch.matmul(x, x.transpose(-1, -2))


def _pairs(x: Tensor) -> int:
    """Ordered pairs of different heads."""
    return x.size(-2) * (x.size(-2) - 1)
