"""The meters of repulsive attention: do the heads point in different directions?

Repulsion can also make the heads longer, which increases their distance without making them more
different. So directions are compared: the cosine between the parameters of two heads and between
their outputs, and the distance between outputs divided by their length. All meters work for plain
models too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.distributions import at_least_float
from ...core.heads import HeadGroup, HeadParameter, by_head
from ..head_diversity import mean_cosine, mean_distance


class FeatureMeters(NamedTuple):
    """The meters of the outputs of one attention module: scalars without gradient."""

    feature_cosine: Tensor
    dist_over_norm: Tensor


@torch.no_grad()
def head_cosine(systems: Sequence[tuple[int, Sequence[HeadParameter]]]) -> Tensor | None:
    """The mean cosine between the weights of two heads, averaged over the systems, a scalar.

    A system is a number of heads and the parameters of one projection (W_Q, W_K or W_V). Biases are
    left out: the bias of the keys has no effect on the attention. Returns None if no system has two
    heads.
    """
    cosines = []
    for heads, parameters in systems:
        weights = [p.detach() for p in parameters if len(p.shape) > 1]
        if heads > 1 and weights:
            cosines.append(mean_cosine(torch.cat([by_head(w, heads) for w in weights], dim=1)))
    return torch.stack([x.float() for x in cosines]).mean() if cosines else None


def systems_of(groups: Sequence[HeadGroup]) -> list[tuple[int, Sequence[HeadParameter]]]:
    """The systems of all projections of the attention modules ``groups``."""
    return [(group.num_heads, parts) for group in groups for parts in group.parameters.values()]


@torch.no_grad()
def feature_sums(z: Tensor, keep: Tensor | None = None) -> Tensor:
    """Sums over tokens, (4,), from the outputs z (…, H, d) of H heads.

    They are the sums of the mean cosine and the mean distance of two heads and of the mean length
    of a head, and the number of tokens. ``keep`` (…) is True at tokens that count; None means
    all. Sums of several batches may be added.
    """
    norms = torch.linalg.vector_norm(at_least_float(z), dim=-1).mean(dim=-1)  # (…)
    values = torch.stack([mean_cosine(z), mean_distance(z), norms, torch.ones_like(norms)])
    if keep is not None:
        values = values.masked_fill(~keep, 0.0)
    return values.flatten(1).sum(dim=1)


def layer_cosines(
    systems: Sequence[tuple[str, int, Sequence[HeadParameter]]],
) -> dict[str, Tensor]:
    """The mean cosine of every layer, by the name of the layer, averaged over its systems.

    A system is the name of its layer, such as ``encoder_0``, and as in ``head_cosine`` a number of
    heads and parameters.
    """
    by_layer: dict[str, list[tuple[int, Sequence[HeadParameter]]]] = {}
    for layer, heads, parameters in systems:
        by_layer.setdefault(layer, []).append((heads, parameters))
    found = {layer: head_cosine(of_layer) for layer, of_layer in by_layer.items()}
    return {layer: cosine for layer, cosine in found.items() if cosine is not None}


def feature_meters(sums: Tensor) -> FeatureMeters:
    """Mean cosine of two heads, and mean distance over mean length, from ``feature_sums``."""
    cosine, distance, norm, tokens = sums
    return FeatureMeters(cosine / tokens.clamp(min=1), distance / norm.clamp(min=1e-12))
