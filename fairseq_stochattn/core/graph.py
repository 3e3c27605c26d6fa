"""Graphs as attention masks: every node attends to its neighbours and to itself.

Nodes of similar degree form a bucket, whose lists of neighbours are padded to a common width. The
widths are powers of 2, so that all buckets together have fewer than twice as many (node, neighbour)
pairs as the graph has edges, however large the degree of a single node is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .context import AttentionMask
from .errors import InputError

# Nodes whose queries and keys a method compares with each other (see ``Graph.groups``).
GROUP_SIZE = 64


@dataclass(frozen=True)
class Bucket:
    """n nodes of similar degree, and their neighbours, padded to S."""

    nodes: Tensor  # (n,)
    neighbours: Tensor  # (n, S); node 0 at padding
    mask: AttentionMask  # key_padding (n, S), True at padding


class Graph(nn.Module):
    """The neighbours of all N nodes in buckets. Its tensors move with a model, but are not saved.

    A node is a neighbour of itself. ``edges`` (2, E) are pairs of source and target; a target
    attends to its sources. Repeated edges count once.
    """

    def __init__(self, edges: Tensor, nodes: int) -> None:
        super().__init__()
        if edges.numel() and not (int(edges.min()) >= 0 and int(edges.max()) < nodes):
            raise InputError(f"an edge has a node outside of 0 to {nodes - 1}")
        self.num_nodes = nodes
        loops = torch.arange(nodes)
        code = torch.cat([edges[1].cpu() * nodes + edges[0].cpu(), loops * nodes + loops]).unique()
        target, source = code // nodes, code % nodes  # sorted by target
        degree = torch.bincount(target, minlength=nodes)
        self.num_pairs = len(code)
        start = degree.cumsum(0) - degree
        # The power of 2 that is not below the degree; exact for degrees below 2⁵³.
        width = 2 ** torch.ceil(torch.log2(degree.double())).long()
        self.num_buckets = 0
        for size in width.unique().tolist():
            members = (width == size).nonzero().squeeze(1)
            size = int(degree[members].max())
            column = torch.arange(size)
            padding = column >= degree[members, None]  # (n, S)
            place = (start[members, None] + column).masked_fill(padding, 0)
            neighbours = source[place].masked_fill(padding, 0)
            self._store(members, neighbours, padding)
        self._masks: list[AttentionMask] = []

    def _store(self, *tensors: Tensor) -> None:
        for name, x in zip(("nodes", "neighbours", "padding"), tensors, strict=True):
            self.register_buffer(f"{name}_{self.num_buckets}", x, persistent=False)
        self.num_buckets += 1

    def buckets(self) -> list[Bucket]:
        """All buckets. Every node is in one of them."""
        paddings = [getattr(self, f"padding_{i}") for i in range(self.num_buckets)]
        if not self._masks or self._masks[0].key_padding is not paddings[0]:
            # The same object at every call, since methods cache what they derive from a mask.
            self._masks = [AttentionMask(p, p[:, None, None, :]) for p in paddings]
        return [
            Bucket(getattr(self, f"nodes_{i}"), getattr(self, f"neighbours_{i}"), self._masks[i])
            for i in range(self.num_buckets)
        ]

    def groups(self, shuffle: bool) -> tuple[Tensor, Tensor | None]:
        """All nodes in groups of at most ``GROUP_SIZE``: nodes (G, M), and padding (G, M) or None.

        Comparing the nodes of a group costs time and memory in proportion to the number of nodes;
        comparing all nodes with each other would cost its square.
        """
        device = self.nodes_0.device
        count = -(-self.num_nodes // GROUP_SIZE)
        size = -(-self.num_nodes // count)
        order = torch.arange(count * size, device=device)
        padding = (order >= self.num_nodes) if count * size > self.num_nodes else None
        if shuffle:
            order[: self.num_nodes] = torch.randperm(self.num_nodes, device=device)
        else:
            # Neighbouring numbers in different groups, since their nodes may be alike.
            order = order.view(size, count).t().flatten()
            padding = None if padding is None else padding.view(size, count).t().flatten()
        nodes = order.clamp(max=self.num_nodes - 1).view(count, size)
        return nodes, None if padding is None else padding.view(count, size)

    def __deepcopy__(self, memo: dict) -> Graph:
        return self  # never changed, so copies of a model share it
