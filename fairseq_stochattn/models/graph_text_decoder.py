"""The decoder of GraphWriter (Koncel-Kedziorski et al. 2019, §3.2): an LSTM that copies entities.

    h_t = LSTM(h_{t−1}, [y_{t−1}; c_{t−1}]),  c_t = attention of h_t to nodes and title
    p = σ(w_p·[h_t; c_t] + b),  α = softmax over entities j of v_jᵀ W [h_t; c_t]
    P(y_t) = p·α on the entities of this graph and (1 − p)·softmax(W_o [h_t; c_t] + b_o) on words

The target dictionary ends with the symbols of entities: the k-th means entity k of its own graph.
An entity symbol as input has the embedding of its type. Different from the paper, one multi-head
attention reads nodes and title together, so that every method sees one attention layer. Shapes:
B graphs, T targets, S nodes and words, E entities, K entity symbols, V words, C dimensions.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import FairseqIncrementalDecoder
from fairseq.modules import FairseqDropout, MultiheadAttention
from torch import Tensor, nn

# Log-probability of symbols whose entity the graph lacks. Finite, since label smoothing adds up the
# log-probabilities of all symbols; in beam search, no such symbol can be among the best.
IMPOSSIBLE = -30.0

Memory = dict[str, list[Tensor]]
State = dict[str, dict[str, Tensor | None]]


class GraphTextDecoder(FairseqIncrementalDecoder):
    """Predicts the next word or entity."""

    def __init__(self, args: Namespace, dictionary: Dictionary, first_entity: int) -> None:
        super().__init__(dictionary)
        dim = args.encoder_embed_dim
        self.first_entity = first_entity  # V: symbols below are words
        self.padding_idx = dictionary.pad()
        self.max_target_positions = args.max_target_positions
        self.embed_tokens = nn.Embedding(first_entity, dim, self.padding_idx)
        nn.init.normal_(self.embed_tokens.weight, std=dim**-0.5)
        nn.init.zeros_(self.embed_tokens.weight[self.padding_idx])
        self.dropout = FairseqDropout(args.dropout, module_name=self.__class__.__name__)
        self.lstm = nn.LSTMCell(2 * dim, dim)
        self.attention = MultiheadAttention(
            dim,
            args.decoder_attention_heads,
            kdim=dim,
            vdim=dim,
            dropout=args.attention_dropout,
            encoder_decoder_attention=True,
        )
        self.output_projection = nn.Linear(2 * dim, first_entity)
        self.gate = nn.Linear(2 * dim, 1)
        self.copy_projection = nn.Linear(2 * dim, dim)

    def forward(
        self,
        prev_output_tokens: Tensor,  # (B, T)
        encoder_out: Memory,
        incremental_state: State | None = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the log-probabilities (B, T, V + K) of words and entity symbols."""
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (x if features_only else self.output_layer(x, encoder_out)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Memory,
        incremental_state: State | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return [h_t; c_t] of every target, (B, T, 2C)."""
        if incremental_state is None:
            keys, previous = {}, None  # the keys are projected once for all targets
        else:
            prev_output_tokens = prev_output_tokens[:, -1:]
            keys = incremental_state
            previous = self.get_incremental_state(incremental_state, "recurrent")
        inputs = self.dropout(self.embed(prev_output_tokens, encoder_out))  # (B, T, C)
        if previous is None:
            root = encoder_out["root"][0]
            h, cell, context = root, root, torch.zeros_like(root)
        else:
            h, cell, context = previous["h"], previous["cell"], previous["context"]
        features = []
        for step in inputs.unbind(dim=1):
            h, cell = self.lstm(torch.cat([step, context], dim=-1), (h, cell))
            context = self.attend(h, encoder_out, keys)
            features.append(torch.cat([h, context], dim=-1))
        if incremental_state is not None:
            state = {"h": h, "cell": cell, "context": context}
            self.set_incremental_state(incremental_state, "recurrent", state)
        return self.dropout(torch.stack(features, dim=1)), {"attn": [None]}

    def embed(self, tokens: Tensor, encoder_out: Memory) -> Tensor:
        """The embeddings (B, T, C) of tokens (B, T): of words, and of the types of entities."""
        types = encoder_out["entity_types"][0]  # (B, E)
        number = tokens - self.first_entity
        if types.size(1) > 0:
            inside = number.clamp(0, types.size(1) - 1)
            known = (number >= 0) & number.eq(inside)
            tokens = torch.where(known, types.gather(1, inside), tokens)
        # A symbol without an entity can only come from a prefix that the user gave.
        unknown = tokens >= self.first_entity
        return self.embed_tokens(tokens.masked_fill(unknown, self.dictionary.unk()))

    def attend(self, h: Tensor, encoder_out: Memory, keys: State) -> Tensor:
        """The context c_t (B, C) of one target; ``keys`` caches projected keys and values."""
        memory = encoder_out["encoder_out"][0]
        return self.attention(
            h.unsqueeze(0),
            memory,
            memory,
            key_padding_mask=encoder_out["encoder_padding_mask"][0],
            incremental_state=keys,
            static_kv=True,
            need_weights=False,
        )[0].squeeze(0)

    def output_layer(self, features: Tensor, encoder_out: Memory) -> Tensor:
        """[h_t; c_t] (B, T, 2C) → log-probabilities (B, T, V + K), in fp32."""
        padding = encoder_out["entity_padding"][0]  # (B, E)
        entities = encoder_out["entities"][0]
        with torch.autocast(features.device.type, enabled=False):
            features = features.type_as(self.gate.weight)
            entities = entities.type_as(features)
            words = self.output_projection(features).float().log_softmax(dim=-1)
            gate = self.gate(features).float()  # (B, T, 1)
            # A graph without entities has nothing to copy: p = 0.
            gate = gate.masked_fill(padding.all(dim=1)[:, None, None], float("-inf"))
            scores = torch.bmm(self.copy_projection(features), entities.transpose(1, 2)).float()
            scores = scores * entities.size(-1) ** -0.5
            lowest = torch.finfo(scores.dtype).min
            copied = scores.masked_fill(padding[:, None], lowest).log_softmax(dim=-1)
            copied = (copied + F.logsigmoid(gate)).masked_fill(padding[:, None], IMPOSSIBLE)
            words = words + F.logsigmoid(-gate)
            missing = len(self.dictionary) - self.first_entity - padding.size(1)
            return torch.cat([words, F.pad(copied, (0, missing), value=IMPOSSIBLE)], dim=-1)

    def reorder_incremental_state(self, incremental_state: State, new_order: Tensor) -> None:
        """Called by beam search; the caches of the attention reorder themselves."""
        state = self.get_incremental_state(incremental_state, "recurrent")
        if state is not None:
            state = {name: x.index_select(0, new_order) for name, x in state.items()}
            self.set_incremental_state(incremental_state, "recurrent", state)

    def max_positions(self) -> int:
        return self.max_target_positions
