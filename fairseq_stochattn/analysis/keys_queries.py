"""Keys and queries of self-attention as two clouds of points, and how far they are apart.

Zhang et al. 2021 (Alignment attention), Fig. 1: both in a plane by t-SNE, and their squared MMD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_stochattn.analysis.drawing import COLOURS, panels
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.attention.matching import Tokens
from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.heads import HeadGroup
from fairseq_stochattn.transport import squared_mmd

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class KeysAndQueries:
    """Of the real tokens of a data set, in every head of one module."""

    queries: Tensor  # (N, H, d): the projections, not scaled
    keys: Tensor  # (N, H, d)
    mmd: Tensor  # (H,): squared, of a sentence's keys and queries, mean over the sentences

    def some(self, count: int, seed: int) -> KeysAndQueries:
        """At most so many tokens, drawn at random."""
        order = torch.randperm(len(self.keys), generator=torch.Generator().manual_seed(seed))
        chosen = order[:count]
        return KeysAndQueries(self.queries[chosen], self.keys[chosen], self.mmd)


def collect(evaluation: Evaluation, group: HeadGroup) -> KeysAndQueries:
    """What one module projects the evaluation's sentences to."""
    module = group.module
    if not isinstance(module, MultiheadAttention) or not module.self_attention:
        raise UsageError("keys-queries: only in self-attention has a token both a key and a query")
    split: dict[str, Tensor] = {}
    queries, keys, distances = [], [], []

    def by_head(projected: Tensor) -> Tensor:
        """(T, B, C) → (B, H, T, d)."""
        return at_least_float(projected.unflatten(2, (group.num_heads, -1)).permute(1, 2, 0, 3))

    def after_q(_: nn.Module, __: object, out: Tensor) -> None:
        split["q"] = by_head(out)

    def after_k(_: nn.Module, __: object, out: Tensor) -> None:
        q, k = split.pop("q"), by_head(out)
        padding = module.stack.query_padding
        tokens = Tokens(q, padding)
        distances.append(squared_mmd(q, k, tokens.mass, tokens.mass)[tokens.several].cpu())
        for found, x in ((queries, q), (keys, k)):
            rows = x.transpose(1, 2)  # (B, T, H, d)
            found.append((rows.flatten(0, 1) if padding is None else rows[~padding]).cpu())

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


def in_the_plane(found: KeysAndQueries, head: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of one head, (N, 2) each, by one t-SNE of both together."""
    from sklearn.manifold import TSNE

    count = len(found.keys)
    if count < 2:
        raise UsageError("keys-queries: t-SNE needs two tokens at least")
    points = torch.cat([found.queries[:, head], found.keys[:, head]]).numpy()
    perplexity = min(30.0, (2 * count - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return plane[:count], plane[count:]


def keys_queries_figure(
    found: KeysAndQueries, heads: Sequence[int], title: str, seed: int
) -> Figure:
    figure, axes = panels(len(heads), (3.4, 3.4))
    for ax, head in zip(axes, heads, strict=True):
        _draw(ax, *in_the_plane(found, head, seed))
        ax.set_title(f"head {head}, squared MMD {found.mmd[head]:.3g}")
    figure.suptitle(title)
    return figure


def _draw(ax: Axes, queries: np.ndarray, keys: np.ndarray) -> None:
    ax.scatter(*keys.T, s=14, color=COLOURS[0], marker="o", linewidths=0, label="keys")
    ax.scatter(
        *queries.T, s=18, facecolors="none", edgecolors=COLOURS[1], marker="D", label="queries"
    )
    ax.set(xticks=[], yticks=[])
    ax.legend(loc="best", fontsize=7)
