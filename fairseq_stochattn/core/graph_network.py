"""A graph attention network (GAT, Veličković et al. 2018): node features → class logits.

h^0 = features,  h^l = ELU of all heads of layer l side by side,  logits = mean over heads
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import UniformDropout
from .graph import Graph
from .graph_attention import GraphAttention
from .sparse import SparseRows


class GraphEncoder(nn.Module):
    """Layers of graph attention; the last one has one feature per class."""

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        classes: int,
        heads: Sequence[int],
        dropout: float,
        attention_dropout: float,
    ) -> None:
        """``hidden`` features per head, and ``heads`` heads in every layer."""
        super().__init__()
        self.input_dropout = UniformDropout(dropout)  # of the input of every layer
        widths = [in_dim, *(hidden * count for count in heads[:-1])]
        outputs = [*(hidden for _ in heads[:-1]), classes]
        self.layers = nn.ModuleList(
            GraphAttention(width, out, count, dropout, attention_dropout)
            for width, out, count in zip(widths, outputs, heads, strict=True)
        )

    def forward(self, features: SparseRows | Tensor, graph: Graph) -> Tensor:
        """Return the logits (N, classes) for features (N, C)."""
        h: SparseRows | Tensor
        if isinstance(features, SparseRows):
            h = features.with_values(self.input_dropout(features.values))
        else:
            h = self.input_dropout(features)
        for number, layer in enumerate(self.layers):
            if number > 0:
                h = self.input_dropout(F.elu(h.flatten(1)))
            h = layer(h, graph)  # (N, H, d)
        return h.mean(dim=1)
