"""Draws the keys and queries of self-attention as points in a plane, by t-SNE.

The title of a panel has their squared MMD (maximum mean discrepancy) and spreads. Zhang et al. 2021
(Alignment attention), Fig. 1.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..core.distributions import at_least_float
from ..core.errors import InputError
from ..core.heads import HeadGroup
from ..methods.alignment.meter import (
    COLLAPSED,
    MAX_POINTS,
    relative_spread,
    scaled_mmd,
    spread,
    spread_indices,
)
from ..methods.alignment.tokens import TokenSet
from ..methods.alignment.transport import squared_mmd
from .drawing import COLOURS, panels
from .evaluation import Evaluation

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeysAndQueries:
    """Keys and queries of all non-padding tokens in a data set, for every head of one module."""

    queries: Tensor  # (N, H, d), without the factor 1/√d
    keys: Tensor  # (N, H, d)
    mmd: Tensor  # (H,): squared MMD (σ = 1) between keys and queries of a sentence, mean over them

    def some(self, count: int, seed: int) -> KeysAndQueries:
        """At most ``count`` tokens, chosen at random."""
        order = torch.randperm(len(self.keys), generator=torch.Generator().manual_seed(seed))
        chosen = order[:count]
        return KeysAndQueries(self.queries[chosen], self.keys[chosen], self.mmd)


@dataclass(frozen=True)
class Clouds:
    """The meters of keys and queries, (H,) each: one number per head."""

    mmd: Tensor
    key_spread: Tensor
    query_spread: Tensor
    collapsed: Tensor  # True where all keys, or all queries, are nearly equal


def clouds_of(points: KeysAndQueries) -> Clouds:
    """The meters of methods/alignment/meter.py, with the kernel's width from the data."""
    rows = spread_indices(len(points.keys), MAX_POINTS, points.keys.device)
    q, k = (x[rows].transpose(0, 1) for x in (points.queries, points.keys))  # (H, n, d)
    mass = torch.full((len(rows),), 1 / len(rows), dtype=q.dtype)
    narrow = [relative_spread(x, mass) < COLLAPSED for x in (q, k)]
    return Clouds(scaled_mmd(q, k, mass), spread(k, mass), spread(q, mass), narrow[0] | narrow[1])


def collect(evaluation: Evaluation, group: HeadGroup) -> KeysAndQueries:
    """Run the model on the data of the evaluation; return the keys and queries of one module."""
    module = group.module
    if not isinstance(module, MultiheadAttention) or not module.self_attention:
        raise InputError(
            "keys-queries needs self-attention, where each token has both a key and a query"
        )
    last: dict[str, Tensor] = {}  # holds the queries until the keys of the same batch are computed
    queries, keys, distances = [], [], []

    def by_head(projected: Tensor) -> Tensor:
        """(T, B, C) → (B, H, T, d)."""
        return at_least_float(projected.unflatten(2, (group.num_heads, -1)).permute(1, 2, 0, 3))

    def after_q(_: nn.Module, __: object, out: Tensor) -> None:
        last["q"] = by_head(out)

    def after_k(_: nn.Module, __: object, out: Tensor) -> None:
        q, k = last.pop("q"), by_head(out)
        padding = module.stack.query_padding
        tokens = TokenSet(q, padding)
        distances.append(squared_mmd(q, k, tokens.mass, tokens.mass)[tokens.several].cpu())
        for collected, x in ((queries, q), (keys, k)):
            rows = x.transpose(1, 2)  # (B, T, H, d)
            collected.append((rows.flatten(0, 1) if padding is None else rows[~padding]).cpu())

    hooks = [
        module.q_proj.register_forward_hook(after_q),
        module.k_proj.register_forward_hook(after_k),
    ]
    try:
        with torch.no_grad():
            evaluation.loss()
    finally:
        for hook in hooks:
            hook.remove()
    return KeysAndQueries(torch.cat(queries), torch.cat(keys), torch.cat(distances).mean(dim=0))


def project_tsne(points: KeysAndQueries, head: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The queries and the keys of one head in the plane, (N, 2) each, by one t-SNE of both sets."""
    from sklearn.manifold import TSNE

    count = len(points.keys)
    if count < 2:
        raise InputError("keys-queries: t-SNE needs at least two tokens")
    both = torch.cat([points.queries[:, head], points.keys[:, head]]).numpy()
    perplexity = min(30.0, (2 * count - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(both)
    return plane[:count], plane[count:]


def keys_queries_figure(
    points: KeysAndQueries, heads: Sequence[int], title: str, seed: int, kernel: str = "data"
) -> Figure:
    """A figure with one panel per head.

    ``kernel`` is that of the MMD: its width is set from the data, or 1 as in the paper.
    """
    figure, axes = panels(len(heads), (3.4, 3.4))
    clouds = clouds_of(points)
    mmd = clouds.mmd if kernel == "data" else points.mmd
    for ax, head in zip(axes, heads, strict=True):
        _draw(ax, *project_tsne(points, head, seed))
        spreads = f"{clouds.key_spread[head]:.3g}, {clouds.query_spread[head]:.3g}"
        ax.set_title(f"head {head}, squared MMD {mmd[head]:.3g}\nspread {spreads}", fontsize=8)
        if clouds.collapsed[head]:
            logger.warning(
                "head %d: keys or queries have collapsed to nearly one point, which makes any MMD "
                "small",
                head,
            )
    figure.suptitle(title)
    return figure


def _draw(ax: Axes, queries: np.ndarray, keys: np.ndarray) -> None:
    ax.scatter(*keys.T, s=14, color=COLOURS[0], marker="o", linewidths=0, label="keys")
    ax.scatter(
        *queries.T, s=18, facecolors="none", edgecolors=COLOURS[1], marker="D", label="queries"
    )
    ax.set(xticks=[], yticks=[])
    ax.legend(loc="best", fontsize=7)
