"""The encoder of GraphWriter (Koncel-Kedziorski et al. 2019, §3): entities, graph and title.

A BiLSTM reads the words of every entity; relations, inverse relations and the global node have
learned vectors. Transformer layers whose attention mask is the Levi graph (core/levi_graph.py) turn
these vectors into the nodes that the decoder attends to. A second BiLSTM reads the title, if there
is one. Shapes: B graphs, E entities, W words of an entity, R triples, N = 1 + E + 2R nodes, L words
of a title, C dimensions.
"""

from __future__ import annotations

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.modules import FairseqDropout
from fairseq.modules.transformer_layer import TransformerEncoderLayer
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..core.levi_graph import FIRST_ENTITY, GLOBAL, blocked_pairs, join_nodes

NO_LIMIT = 100_000


class WordEncoder(nn.Module):
    """A BiLSTM over rows of words; padding is on the right."""

    def __init__(self, embed_tokens: nn.Embedding, dim: int, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.dropout = FairseqDropout(dropout, module_name=self.__class__.__name__)
        self.lstm = nn.LSTM(
            embed_tokens.embedding_dim, dim // 2, batch_first=True, bidirectional=True
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (n, W) → the states of all words (n, W, C) and the last state (n, C).

        The last state is that of both directions: after the last word and after the first one.
        """
        lengths = tokens.ne(self.embed_tokens.padding_idx).sum(dim=1)
        packed = pack_padded_sequence(
            self.dropout(self.embed_tokens(tokens)),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, (last, _) = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=tokens.size(1))
        return states, torch.cat(last.unbind(), dim=-1)


class GraphTextEncoder(FairseqEncoder):
    """Encodes graphs and titles as one memory of nodes and words."""

    def __init__(
        self, args: Namespace, dictionary: Dictionary, relations: Dictionary, titles: bool
    ) -> None:
        super().__init__(dictionary)
        dim = args.encoder_embed_dim
        self.padding_idx, self.relation_padding = dictionary.pad(), relations.pad()
        self.num_relations = len(relations)
        self.embed_tokens = nn.Embedding(len(dictionary), dim, self.padding_idx)
        nn.init.normal_(self.embed_tokens.weight, std=dim**-0.5)
        nn.init.zeros_(self.embed_tokens.weight[self.padding_idx])
        # Relations, inverse relations and the global node.
        self.embed_nodes = nn.Embedding(2 * self.num_relations + 1, dim, self.relation_padding)
        nn.init.normal_(self.embed_nodes.weight, std=dim**-0.5)
        self.entities = WordEncoder(self.embed_tokens, dim, args.dropout)
        self.title = WordEncoder(self.embed_tokens, dim, args.dropout) if titles else None
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(args) for _ in range(args.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(dim) if args.encoder_normalize_before else None

    @property
    def num_labels(self) -> int:
        """The number of node labels: those of ``embed_nodes`` and one for all entities."""
        return 2 * self.num_relations + 2

    def forward(
        self,
        entity_tokens: Tensor,  # (B, E, W)
        entity_types: Tensor,  # (B, E): type symbols of the target dictionary
        relations: Tensor,  # (B, R)
        heads: Tensor,  # (B, R): entity numbers
        tails: Tensor,  # (B, R)
        title_tokens: Tensor | None = None,  # (B, L)
        src_tokens: Tensor | None = None,  # the graph as text, for fairseq-generate; not read
        src_lengths: Tensor | None = None,
        **unused: object,
    ) -> dict[str, list[Tensor]]:
        """Return the memory (S, B, C) with S = N + L, and what the decoder needs to copy."""
        entity_padding = entity_tokens[:, :, 0].eq(self.padding_idx)
        relation_padding = relations.eq(self.relation_padding)
        padding = join_nodes(entity_padding, relation_padding)  # (B, N)
        blocked = blocked_pairs(entity_padding, relation_padding, heads, tails)
        labels = self.node_labels(entity_padding, relations)
        x = self.node_vectors(entity_tokens, entity_padding, labels).transpose(0, 1)  # (N, B, C)
        x = self.attend_to_neighbours(x, labels, padding, blocked)
        memory, memory_padding = x, padding
        if self.title is not None:
            words = self.title(title_tokens)[0]  # (B, L, C)
            memory = torch.cat([x, words.transpose(0, 1)])
            memory_padding = torch.cat([padding, title_tokens.eq(self.padding_idx)], dim=1)
        entities = x[FIRST_ENTITY : FIRST_ENTITY + entity_tokens.size(1)].transpose(0, 1)
        return {
            "encoder_out": [memory],
            "encoder_padding_mask": [memory_padding],
            "root": [x[GLOBAL]],  # (B, C)
            "entities": [entities],  # (B, E, C)
            "entity_padding": [entity_padding],
            "entity_types": [entity_types],
        }

    def node_labels(self, entity_padding: Tensor, relations: Tensor) -> Tensor:
        """The labels of all nodes, (B, N); padding has the label of padding relations."""
        pad, entity = self.relation_padding, 2 * self.num_relations + 1
        entities = torch.full_like(entity_padding, entity, dtype=torch.long)
        inverse = (relations + self.num_relations).masked_fill(relations.eq(pad), pad)
        root = entities.new_full((len(entities), 1), 2 * self.num_relations)
        return torch.cat([root, entities.masked_fill(entity_padding, pad), relations, inverse], 1)

    def node_vectors(self, tokens: Tensor, padding: Tensor, labels: Tensor) -> Tensor:
        """The vectors of all nodes before the first layer, (B, N, C)."""
        batch, entities, _ = tokens.shape
        parts = labels.split([1, entities, labels.size(1) - 1 - entities], dim=1)
        root, relations = self.embed_nodes(parts[0]), self.embed_nodes(parts[2])
        vectors = root.new_zeros(batch, entities, root.size(-1))
        if not bool(padding.all()):  # packing refuses an empty batch
            vectors[~padding] = self.entities(tokens[~padding])[1].type_as(vectors)
        return torch.cat([root, vectors, relations], dim=1)

    def attend_to_neighbours(
        self, x: Tensor, labels: Tensor, padding: Tensor, blocked: Tensor
    ) -> Tensor:
        """Apply the layers to x (N, B, C); ``blocked`` (B, N, N) is their attention mask."""
        for layer in self.layers:
            x = layer(x, encoder_padding_mask=padding, attn_mask=blocked)
        return x if self.layer_norm is None else self.layer_norm(x)

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Tensor]], new_order: Tensor
    ) -> dict[str, list[Tensor]]:
        return {
            name: [x.index_select(1 if name == "encoder_out" else 0, new_order) for x in values]
            for name, values in encoder_out.items()
        }

    def max_positions(self) -> int:
        return NO_LIMIT
