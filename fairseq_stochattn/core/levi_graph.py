"""Levi graphs: knowledge graphs whose relations are nodes (Koncel-Kedziorski et al. 2019, §3.1).

A triple (h, r, t) becomes the edges h → r → t and t → r⁻¹ → h, with one node for r and one for its
inverse. A global node is joined with all entities in both directions. A node attends to itself and
to the nodes with an edge to it. The nodes of a graph with E entities and R triples, in this order:

    global node, E entities, R relations, R inverse relations; N = 1 + E + 2R

The mask is dense: a batch of B graphs needs B·N² cells, whatever the number of edges. These graphs
have tens of nodes; graphs with thousands of nodes need core/graph_attention.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

GLOBAL = 0  # the position of the global node
FIRST_ENTITY = 1


def join_nodes(entities: Tensor, relations: Tensor) -> Tensor:
    """True at padding nodes, (B, N), from the padding of entities (B, E) and relations (B, R)."""
    first = entities.new_zeros((entities.size(0), 1), dtype=torch.bool)
    return torch.cat([first, entities.bool(), relations.bool(), relations.bool()], dim=1)


def blocked_pairs(
    entity_padding: Tensor, relation_padding: Tensor, heads: Tensor, tails: Tensor
) -> Tensor:
    """The attention mask of a batch of graphs, (B, N, N): True where row must not see column.

    ``heads`` and ``tails`` (B, R) number the entities of every triple; their values at padding
    relations are ignored.
    """
    batch, entities = entity_padding.shape
    triples = relation_padding.size(1)
    nodes = FIRST_ENTITY + entities + 2 * triples
    device = entity_padding.device
    seen = torch.eye(nodes, dtype=torch.bool, device=device).repeat(batch, 1, 1)
    real = ~entity_padding.bool()
    seen[:, FIRST_ENTITY : FIRST_ENTITY + entities, GLOBAL] = real
    seen[:, GLOBAL, FIRST_ENTITY : FIRST_ENTITY + entities] = real
    row, triple = (~relation_padding.bool()).nonzero(as_tuple=True)
    head, tail = heads[row, triple] + FIRST_ENTITY, tails[row, triple] + FIRST_ENTITY
    relation = FIRST_ENTITY + entities + triple
    for source, middle, target in ((head, relation, tail), (tail, relation + triples, head)):
        seen[row, middle, source] = True
        seen[row, target, middle] = True
    return ~seen
