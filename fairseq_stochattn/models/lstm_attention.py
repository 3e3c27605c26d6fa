"""The attention of fairseq's LSTM decoder with methods: one head, and one query per call.

The class is a subclass of fairseq's ``AttentionLayer`` (Luong et al. 2015, general score with input
feeding) with the same parameters. Shapes: B sentences, S source tokens, C the source dimension,
H = 1 head, T = 1 query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fairseq.models.lstm import AttentionLayer
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

        Only the class is changed, so that parameters and checkpoint names stay fairseq's.
        """
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
        q = self.input_proj(input).unsqueeze(1)  # (B, 1, C)
        k = source_hids.transpose(0, 1)  # (B, S, C)
        logits = torch.bmm(q, k.transpose(1, 2)).unsqueeze(1)  # (B, 1, 1, S)
        context = AttentionContext(
            q=q.unsqueeze(1),
            k=k.unsqueeze(1),
            query_input=input.unsqueeze(0),
            key_input=source_hids,
            query_padding=self.stack.next_query_padding(),
            attention_mask=self.padding_mask(encoder_padding_mask),
            stack=self.stack,
        )
        weights = attend(logits, context, self.attention_methods).squeeze(1)  # (B, 1, S), fp32
        attended = torch.bmm(weights.type_as(k), k).squeeze(1)  # (B, C)
        if self.head_hooks:
            outputs = attended[:, None, None, :]  # (B, 1, 1, C)
            self.call_head_hooks(HeadOutputs(weights.unsqueeze(1), outputs, context.query_padding))
        x = torch.tanh(self.output_proj(torch.cat((attended, input), dim=1)))
        return x, weights.squeeze(1).t().type_as(x)  # weights: (S, B)


def mask_from_columns(mask: Tensor | None) -> AttentionMask:
    """Convert a padding mask (S, B), with one column per sentence, to an attention mask."""
    return mask_from_padding(None if mask is None else mask.t())
