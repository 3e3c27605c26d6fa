"""The attention of fairseq's LSTM decoder with methods: one head, and one query per call.

``StochasticAttentionLayer`` is fairseq's ``AttentionLayer`` (Luong et al. 2015, general score with
input feeding) with the same parameters. ``AdditiveAttentionLayer`` has the additive score of
Bahdanau et al. 2015 instead, as the translation model of the BABN paper. Shapes: B sentences,
S source tokens, C the source dimension, d the dimension of queries and keys, H = 1 head, T = 1
query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fairseq.models.lstm import AttentionLayer, Linear
from torch import Tensor

from ..core.attention import attend
from ..core.context import AttentionContext, AttentionMask, CacheLast, mask_from_padding
from ..core.head_hooks import HasHeadHooks, HeadOutputs
from ..core.method import MethodDict
from ..core.stack import AttentionStack


class StochasticAttentionLayer(HasHeadHooks, AttentionLayer):
    """LSTM attention whose logits pass through ``attention_methods`` before the softmax."""

    if TYPE_CHECKING:  # torch.jit.trace would fail on these types before our own error
        stack: AttentionStack
        attention_methods: MethodDict
        padding_mask: CacheLast[Tensor | None, AttentionMask]

    @classmethod
    def adopt(cls, attention: AttentionLayer) -> StochasticAttentionLayer:
        """Convert fairseq's attention layer to this class, in place, and return the layer.

        Only the class is changed, so that parameters and checkpoint names stay fairseq's. An
        additive layer is returned unchanged.
        """
        if isinstance(attention, cls):
            return attention
        attention.__class__ = cls
        attention.padding_mask = CacheLast(mask_from_columns)
        return attention  # type: ignore[return-value]

    def sizes(self) -> dict[str, int]:
        """The sizes of the layer, as fields of ``LayerInfo``."""
        source_dim, query_dim = self.input_proj.weight.shape
        return {
            "num_heads": 1,
            "head_dim": source_dim,
            "query_dim": query_dim,
            "key_dim": source_dim,
        }

    def forward(
        self,
        input: Tensor,  # (B, query_dim)
        source_hids: Tensor,  # (S, B, C)
        encoder_padding_mask: Tensor | None,  # (S, B), True at padding
    ) -> tuple[Tensor, Tensor]:
        """Return the output (B, C) and the attention weights (S, B)."""
        values = source_hids.transpose(0, 1)  # (B, S, C)
        q, k, logits = self.score(input, source_hids)
        context = AttentionContext(
            q=q.unsqueeze(1),  # (B, 1, 1, d)
            k=k.unsqueeze(1),  # (B, 1, S, d)
            query_input=input.unsqueeze(0),
            key_input=source_hids,
            query_padding=self.stack.next_query_padding(),
            attention_mask=self.padding_mask(encoder_padding_mask),
            stack=self.stack,
        )
        weights = attend(logits, context, self.attention_methods).squeeze(1)  # (B, 1, S), fp32
        attended = torch.bmm(weights.type_as(values), values).squeeze(1)  # (B, C)
        if self.head_hooks:
            outputs = attended[:, None, None, :]  # (B, 1, 1, C)
            self.call_head_hooks(HeadOutputs(weights.unsqueeze(1), outputs, context.query_padding))
        x = torch.tanh(self.output_proj(torch.cat((attended, input), dim=1)))
        return x, weights.squeeze(1).t().type_as(x)  # weights: (S, B)

    def score(self, input: Tensor, source_hids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, 1, d), k (B, S, d) and the logits qᵀk (B, 1, 1, S).

        Here the keys are the values, so d = C.
        """
        q = self.input_proj(input).unsqueeze(1)  # (B, 1, C)
        k = source_hids.transpose(0, 1)  # (B, S, C)
        return q, k, torch.bmm(q, k.transpose(1, 2)).unsqueeze(1)


class AdditiveAttentionLayer(StochasticAttentionLayer):
    """LSTM attention with the logits vᵀ tanh(q + k), where q = W_q s and k = W_k h.

    s is the state of the decoder and h a state of the encoder.
    """

    def __init__(self, query_dim: int, source_dim: int, output_dim: int, hidden: int) -> None:
        super().__init__(query_dim, source_dim, output_dim)
        self.input_proj = Linear(query_dim, hidden, bias=False)  # W_q
        self.key_proj = Linear(source_dim, hidden, bias=False)  # W_k
        self.score_proj = Linear(hidden, 1, bias=False)  # v
        self.padding_mask = CacheLast(mask_from_columns)

    @classmethod
    def replace(cls, attention: AttentionLayer, hidden: int) -> AdditiveAttentionLayer:
        """Return a new layer of ``hidden`` dimensions with the output projection of another."""
        source_dim, query_dim = attention.input_proj.weight.shape
        new = cls(query_dim, source_dim, attention.output_proj.out_features, hidden)
        new.output_proj = attention.output_proj
        return new

    def sizes(self) -> dict[str, int]:
        hidden, query_dim = self.input_proj.weight.shape
        source_dim = self.key_proj.in_features
        return {
            "num_heads": 1,
            "head_dim": hidden,
            "query_dim": query_dim,
            "key_dim": source_dim,
        }

    def score(self, input: Tensor, source_hids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, 1, d), k (B, S, d) and the logits vᵀ tanh(q + k) (B, 1, 1, S)."""
        q = self.input_proj(input).unsqueeze(1)  # (B, 1, d)
        k = self.keys(source_hids)
        return q, k, self.score_proj(torch.tanh(q + k)).transpose(1, 2).unsqueeze(1)

    def keys(self, source_hids: Tensor) -> Tensor:
        """Return k (B, S, d), computed once for all queries of a forward pass."""
        state = self.stack.state
        if "additive" not in state or state["additive"][0] is not source_hids:
            state["additive"] = source_hids, self.key_proj(source_hids.transpose(0, 1))
        return state["additive"][1]


def mask_from_columns(mask: Tensor | None) -> AttentionMask:
    """Convert a padding mask (S, B), with one column per sentence, to an attention mask."""
    return mask_from_padding(None if mask is None else mask.t())
