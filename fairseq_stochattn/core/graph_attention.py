"""Graph attention (Veličković et al. 2018), and what an attention method sees of it.

    e_ij = LeakyReLU(a_Qᵀ W h_i + a_Kᵀ W h_j),  α_i = softmax over neighbours j of e_ij
    h'_i = Σ_j α_ij W h_j

a = [a_Q ‖ a_K] is the paper's vector. The queries and keys of a head are q_i = a_Q ⊙ W h_i and
k_j = a_K ⊙ W h_j, so that e_ij is LeakyReLU of the sum of all their entries. The papers of the
methods do not define queries and keys of graph attention; this is our choice.

A method sees a graph layer in two ways:

- ``observe`` is called once with all nodes, in groups: queries and keys are (G, H, M, d) for G
  groups of M nodes, as if every group were a sentence. Nothing is masked but padding.
- ``forward`` and ``reweigh`` are called for every bucket of n nodes with up to S neighbours each:
  the logits are (n, H, 1, S), as if every node were a sentence with one query. Padding neighbours
  are masked. ``stack.state`` is one dictionary per bucket, shared by all layers.

The inputs of a graph layer are not shown (``query_input`` and ``key_input`` are None).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import attend
from .context import AttentionContext, AttentionMask
from .dropout import UniformDropout
from .graph import Bucket, Graph
from .head_hooks import HasHeadHooks, HeadOutputs
from .method import MethodDict
from .sparse import SparseRows, sparse_linear
from .stack import AttentionStack

NEGATIVE_SLOPE = 0.2  # of LeakyReLU


class GraphAttention(HasHeadHooks, nn.Module):
    """Multi-head graph attention: node features (N, C) → (N, H, d)."""

    def __init__(
        self,
        in_dim: int,
        head_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.in_dim = num_heads, head_dim, in_dim
        self.value_dropout = UniformDropout(dropout)  # of W h in the sum over the neighbours
        self.dropout = UniformDropout(attention_dropout)
        self.weight = nn.Parameter(torch.empty(num_heads * head_dim, in_dim))  # W
        self.a_q = nn.Parameter(torch.empty(num_heads, head_dim))
        self.a_k = nn.Parameter(torch.empty(num_heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.attention_methods = MethodDict()
        self.stack: AttentionStack | None
        object.__setattr__(self, "stack", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform distribution for every head, as in the paper."""
        for part in self.weight.data.view(self.num_heads, self.head_dim, self.in_dim):
            nn.init.xavier_uniform_(part)
        # a_Qᵀ and a_Kᵀ are linear maps from d numbers to one.
        for vector in (self.a_q, self.a_k):
            for part in vector.data:
                nn.init.xavier_uniform_(part.unsqueeze(0))

    def sizes(self) -> dict[str, int]:
        """The sizes of the layer, as fields of ``LayerInfo``."""
        return {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "query_dim": self.in_dim,
            "key_dim": self.in_dim,
        }

    def head_parameters(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each head, for repulsive attention: W is the value projection."""
        return {"q": [self.a_q], "k": [self.a_k], "v": [self.weight]}

    def forward(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Return h' (N, H, d) for features x (N, C), dense or sparse."""
        wh = self.project(x, self.weight)  # (N, H, d)
        q, k = self.a_q * wh, self.a_k * wh
        if self.attention_methods:
            self._observe(x, q, k, graph)
        score_q, score_k = q.sum(dim=-1), k.sum(dim=-1)  # (N, H)
        values = self.value_dropout(wh)
        parts, nodes = [], []
        for number, bucket in enumerate(graph.buckets()):
            logits = score_q[bucket.nodes][:, None] + rows_of(score_k, bucket.neighbours)
            logits = F.leaky_relu(logits, NEGATIVE_SLOPE)  # (n, S, H)
            logits = logits.transpose(1, 2).unsqueeze(2)  # (n, H, 1, S)
            weights = self._weights(logits, bucket, number, q, k)  # (n, H, 1, S), fp32
            probs = self.dropout(weights.type_as(values)).permute(0, 3, 1, 2)  # (n, S, H, 1)
            # Faster than a batched product, since each of its matrices would have a single row.
            out = (probs * rows_of(values, bucket.neighbours)).sum(dim=1)  # (n, H, d)
            if self.head_hooks:
                self.call_head_hooks(HeadOutputs(weights, out.unsqueeze(2), None))
            parts.append(out)
            nodes.append(bucket.nodes)
        order = torch.cat(nodes).argsort()
        return torch.cat(parts)[order] + self.bias

    def project(self, x: Tensor | SparseRows, weight: Tensor) -> Tensor:
        """Return W x by head, (N, H, d)."""
        out = sparse_linear(x, weight) if isinstance(x, SparseRows) else F.linear(x, weight)
        return out.unflatten(-1, (self.num_heads, self.head_dim))

    def queries_and_keys(self, x: Tensor | SparseRows) -> tuple[Tensor, Tensor]:
        """Return q and k (N, H, d) for features x (N, C)."""
        wh = self.project(x, self.weight)
        return self.a_q * wh, self.a_k * wh

    def _weights(self, logits: Tensor, bucket: Bucket, number: int, q: Tensor, k: Tensor) -> Tensor:
        """The attention weights (n, H, 1, S) of a bucket."""
        if not self.attention_methods:
            masked = logits + bucket.mask.additive(logits.dtype)
            return masked.softmax(dim=-1, dtype=torch.promote_types(masked.dtype, torch.float32))
        context = AttentionContext(
            q=q[bucket.nodes].unsqueeze(2),  # (n, H, 1, d)
            k=rows_of(k, bucket.neighbours).transpose(1, 2),  # (n, H, S, d)
            query_input=None,
            key_input=None,
            query_padding=None,
            attention_mask=bucket.mask,
            stack=self.stack,
        )
        with self.stack.part(number):
            return attend(logits, context, self.attention_methods, observed=True)

    def _observe(self, x: Tensor | SparseRows, q: Tensor, k: Tensor, graph: Graph) -> None:
        """Show all queries and keys to the methods that read them."""
        observers = [m for m in self.attention_methods.values() if m.observes]
        if not observers:
            return
        nodes, padding = graph.groups(shuffle=self.training)

        def grouped(features: Tensor) -> Tensor:
            """(N, H, d) → (G, H, M, d)."""
            return features[nodes].transpose(1, 2)

        def projected() -> tuple[Tensor, Tensor]:
            q, k = self.queries_and_keys(x.detach())
            return grouped(q), grouped(k)

        context = AttentionContext(
            q=grouped(q),
            k=grouped(k),
            query_input=None,
            key_input=None,
            query_padding=padding,
            attention_mask=AttentionMask(key_padding=padding),
            stack=self.stack,
            projected=projected,
        )
        for method in observers:
            method.observe(context)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """table[index]: (N, …) and (n, S) → (n, S, …), with a faster backward pass."""
    return F.embedding(index, table.flatten(1)).unflatten(-1, table.shape[1:])
