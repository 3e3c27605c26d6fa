"""The meters of alignment attention: are keys and queries closer, and have they kept their spread?

The width of the MMD's kernel adapts to the data. With a fixed width (1 in Zhang et al. 2021, App.
B.1.2), the MMD also falls if all keys and queries only shrink. The keys and the queries of one
head, in all sentences of a batch, are compared. All functions are pure functions of tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...core.distributions import at_least_float
from .transport import squared_mmd

# Points whose spread is below this share of their length have collapsed: they are nearly equal.
COLLAPSED = 0.05
MAX_POINTS = 256  # largest number of tokens whose keys and queries are compared
_GOLDEN = 0.6180339887498949  # multiples of it modulo 1 have no period and are evenly spread


class CloudMeters(NamedTuple):
    """The meters of one layer, averaged over its heads: scalars without gradient."""

    mmd: Tensor
    key_spread: Tensor
    query_spread: Tensor


@torch.no_grad()
def cloud_meters(q: Tensor, k: Tensor, padding: Tensor | None) -> tuple[CloudMeters, Tensor]:
    """The meters of queries and keys (B, H, T, d) of self-attention; padding is (B, T) or None.

    The second result is 1.0 if there are at least two tokens to compare. Otherwise it and all
    meters are 0.
    """
    batch, _, length, _ = q.shape
    # --add-bias-kv and --add-zero-attn append keys that belong to no token.
    q, k = at_least_float(q), at_least_float(k[:, :, :length])
    rows = spread_indices(batch * length, MAX_POINTS, q.device)
    some_q, some_k = (x.transpose(0, 1).flatten(1, 2)[:, rows] for x in (q, k))  # (H, n, d)
    mass = q.new_ones(len(rows))
    if padding is not None:
        mass = (~padding).flatten()[rows].to(q.dtype)
    enough = (mass.sum() > 1).to(q.dtype)
    mass = mass / mass.sum().clamp(min=1)
    found = (
        scaled_mmd(some_q, some_k, mass).mean(),
        spread(some_k, mass).mean(),
        spread(some_q, mass).mean(),
    )
    return CloudMeters(*(x * enough for x in found)), enough


def scaled_mmd(q: Tensor, k: Tensor, mass: Tensor) -> Tensor:
    """The squared MMD between queries and keys (H, n, d), per head, (H,). Both have masses (n,).

    The kernel is exp(−‖x − y‖²/(2σ²)), where σ² is the mean squared distance of two points, queries
    and keys together. So the MMD does not change if all points are scaled or moved together. It is
    0 if every key equals its query, and at most 2.
    """
    both, half = torch.cat([q, k], dim=1), torch.cat([mass, mass]) / 2
    variance = 2 * spread(both, half).square()  # E‖x − y‖² of two independent points
    scale = variance.clamp(min=torch.finfo(q.dtype).tiny).rsqrt()[:, None, None]
    centre = (both * half[:, None]).sum(dim=1, keepdim=True)
    # Distances are more accurate after subtracting the centre. Points without mass (padding) may
    # have any value, so they are moved to the centre, which keeps every distance finite.
    counted = (mass > 0).to(q.dtype)[:, None]
    q, k = ((x - centre) * counted * scale for x in (q, k))
    p = mass.view(1, 1, -1)
    return squared_mmd(q[None], k[None], p, p)[0]


def spread(x: Tensor, mass: Tensor) -> Tensor:
    """The root mean squared distance, (H,), of points (H, n, d) with masses (n,) to their mean."""
    weights = mass[:, None]
    centre = (x * weights).sum(dim=1, keepdim=True)
    return ((x - centre).square() * weights).sum(dim=(1, 2)).sqrt()


def relative_spread(x: Tensor, mass: Tensor) -> Tensor:
    """The spread of points (H, n, d) divided by their root mean squared length, (H,), at most 1."""
    length = (x.square() * mass[:, None]).sum(dim=(1, 2)).sqrt()
    return spread(x, mass) / length.clamp(min=torch.finfo(x.dtype).tiny)


def spread_indices(total: int, count: int, device: torch.device) -> Tensor:
    """At most ``count`` different indices below ``total``, evenly spread and the same every time.

    Equal steps could always select the same position of a sentence, and random indices would change
    the random numbers that training uses.
    """
    if total <= count:
        return torch.arange(total, device=device)
    multiples = (torch.arange(total, dtype=torch.float64, device=device) * _GOLDEN).remainder(1.0)
    return multiples.argsort()[:count]
