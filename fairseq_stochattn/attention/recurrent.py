"""The same methods over the LSTM decoder's attention: one head, one query a step.

fairseq's ``AttentionLayer`` (Luong et al. 2015, general score with input feeding) with its
parameters. Shapes: B sentences, S source tokens, C the source dimension; H = T = 1.
"""

from __future__ import annotations

import torch
from fairseq.models.lstm import AttentionLayer
from torch import Tensor

from fairseq_stochattn.attention.cells import Cells, Hidden, Remembered, behind_padding
from fairseq_stochattn.attention.method import MethodDict, attend
from fairseq_stochattn.attention.stack import AttentionStack
from fairseq_stochattn.attention.watching import Heads, ShowsHeads


class StochasticAttentionLayer(ShowsHeads, AttentionLayer):
    """LSTM attention whose logits pass through ``attention_methods`` before the softmax."""

    stack: AttentionStack
    attention_methods: MethodDict
    hidden: Remembered[Tensor | None, Hidden]

    @classmethod
    def adopt(cls, attention: AttentionLayer) -> StochasticAttentionLayer:
        """Turn a plain attention layer into ours, in place (see the multi-head counterpart)."""
        attention.__class__ = cls
        attention.hidden = Remembered(behind_columns)
        return attention  # type: ignore[return-value]

    def sizes(self) -> dict[str, int]:
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
        q = self.input_proj(input).unsqueeze(1)  # (B, 1, C)
        k = source_hids.transpose(0, 1)  # (B, S, C)
        logits = torch.bmm(q, k.transpose(1, 2)).unsqueeze(1)  # (B, 1, 1, S)
        cells = Cells(
            q=q.unsqueeze(1),
            k=k.unsqueeze(1),
            query_input=input.unsqueeze(0),
            key_input=source_hids,
            query_padding=self.stack.next_query_padding(),
            hidden=self.hidden(encoder_padding_mask),
            stack=self.stack,
        )
        weights = attend(logits, cells, self.attention_methods).squeeze(1)  # (B, 1, S), fp32
        context = torch.bmm(weights.type_as(k), k).squeeze(1)  # (B, C)
        if self.watchers:
            # One head, and one query a call.
            outputs = context[:, None, None, :]
            self.show(Heads(weights.unsqueeze(1), outputs, cells.query_padding))
        x = torch.tanh(self.output_proj(torch.cat((context, input), dim=1)))
        return x, weights.squeeze(1).t().type_as(x)  # weights: (S, B)


def behind_columns(mask: Tensor | None) -> Hidden:
    """What a padding mask hides that has sentences as columns, (S, B)."""
    return behind_padding(None if mask is None else mask.t())
