"""Head diversity: regularisers that penalise similar heads, and the measure Dist.

These are the baselines of repulsive attention (``--criterion head_diversity``):

- disagreement (Li et al. 2018): the mean cosine between the outputs of two heads for one token;
- cosine (An et al. 2020, App. C.6): the mean cosine between the parameters of two heads;
- frobenius (Lin et al. 2017): ‖A Aᵀ − I‖²_F, where row i of A are the weights of head i.

The measures are pure functions of tensors (…, H, d): H heads with d numbers each. They average over
pairs of two different heads, so identical heads have the mean cosine 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.distributions import at_least_float
from ..core.errors import require_not_negative
from ..core.head_hooks import HeadOutputs
from ..core.heads import HeadGroup, by_head
from ..core.losses import NamedLoss
from ..core.settings import Settings, setting


@dataclass(frozen=True)
class HeadDiversity(Settings):
    """Settings of the penalty on similar heads."""

    kind: Literal["disagreement", "cosine", "frobenius"] = setting(
        "disagreement",
        "similarity that is penalised: the cosine of the heads' outputs (disagreement), the cosine "
        "of their parameters (cosine; works with plain archs too), or the overlap of their "
        "attention (frobenius)",
        flag="diversity",
    )
    weight: float = setting(
        1.0,
        "weight of the penalty; 1 in Li et al. and, except for SNLI, in Lin et al.",
        flag="diversity_weight",
    )
    sites: str = setting(
        "all",
        "sites whose heads are penalised: all, or a list of encoder, decoder, cross",
        flag="diversity_sites",
    )
    layers: str = setting(
        "all",
        "layers whose heads are penalised: all, first, last, or indices such as 0,2",
        flag="diversity_layers",
    )
    log_dist: bool = setting(
        False, "log the mean distance between the outputs of two heads as dist", flag="log_dist"
    )

    def check(self) -> None:
        require_not_negative(self, "weight")


def diversity_losses(heads: HeadOutputs, settings: HeadDiversity) -> list[tuple[str, NamedLoss]]:
    """The penalty and Dist of one attention module, as sums over its non-padding tokens."""
    outputs = heads.outputs.transpose(1, 2)  # (B, T, H, d)
    weights = heads.weights.transpose(1, 2)  # (B, T, H, S)
    values: dict[str, Tensor] = {}  # (B, T) each
    if settings.kind == "disagreement":
        values[settings.kind] = mean_cosine(outputs)
    if settings.kind == "frobenius":
        values[settings.kind] = frobenius(weights)
    if settings.log_dist:
        values["dist"] = mean_distance(outputs.detach())
    not_padding = outputs.new_ones(outputs.shape[:2], dtype=torch.bool)
    if heads.padding is not None:
        not_padding = ~heads.padding
    terms = []
    for name, value in values.items():
        weight = None if name == "dist" else settings.weight
        total = value.masked_fill(~not_padding, 0.0).sum()
        terms.append((name, NamedLoss(total, weight, "mean", not_padding.sum())))
    return terms


def parameter_cosine(groups: Sequence[HeadGroup]) -> Tensor:
    """The mean cosine between the parameters of two heads, averaged over projections and layers."""
    systems = [
        torch.cat([by_head(parameter, group.num_heads) for parameter in parameters], dim=1)
        for group in groups
        for parameters in group.parameters.values()
    ]
    return torch.stack([mean_cosine(heads) for heads in systems]).mean()


_TINY = 1e-24  # smallest squared length that is divided by


def mean_cosine(x: Tensor) -> Tensor:
    """x (…, H, d) → (…): the cosine of two heads, averaged over pairs (Li et al. 2018).

    A head that is zero has the cosine 0 with every other head.
    """
    gram = _gram(x)
    lengths = gram.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY).sqrt()  # (…, H)
    cosines = gram / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    with_itself = cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (cosines.sum(dim=(-2, -1)) - with_itself) / _num_pairs(x)


def frobenius(a: Tensor) -> Tensor:
    """a (…, H, S) → (…): ‖A Aᵀ − I‖²_F of attention weights (Lin et al. 2017, Eq. 8)."""
    gram = _gram(a)
    identity = torch.eye(a.size(-2), dtype=gram.dtype, device=gram.device)
    return (gram - identity).square().sum(dim=(-2, -1))


def mean_distance(x: Tensor) -> Tensor:
    """x (…, H, d) → (…): Dist, ‖x_i − x_j‖ averaged over pairs (An et al. 2020, Table 1)."""
    x = at_least_float(x)
    # From differences: a Gram matrix would round small distances between long vectors to 0.
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")  # (…, H, H)
    return distances.sum(dim=(-2, -1)) / _num_pairs(x)


def _gram(x: Tensor) -> Tensor:
    """X Xᵀ (…, H, H), in fp32 under autocast too."""
    x = at_least_float(x)
    with torch.autocast(x.device.type, enabled=False):
        return torch.matmul(x, x.transpose(-1, -2))


def _num_pairs(x: Tensor) -> int:
    """The number of ordered pairs of two different heads."""
    return x.size(-2) * (x.size(-2) - 1)
