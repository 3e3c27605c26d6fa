"""Adapters of GraphWriter: they pass every forward pass, and every target, to the stacks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import compat
from ..core.stack import Vocabulary
from .multihead_attention import StochasticMultiheadAttention


class GraphTextEncoderAdapter:
    """Adapter for the graph layers; the tokens of a node are its label (relation or entity)."""

    def attend_to_neighbours(self, x: Tensor, labels: Tensor, *masks: Tensor) -> Tensor:
        self.attention_stacks["encoder"].begin(labels, self.relation_padding)
        return super().attend_to_neighbours(x, labels, *masks)

    def attentions(self) -> dict[str, list[nn.Module]]:
        """Convert the attention modules in place and return them by site."""
        compat.use_own_attention_in_eval(self.layers)
        return {"encoder": [StochasticMultiheadAttention.adopt(x.self_attn) for x in self.layers]}

    def vocabulary(self) -> Vocabulary:
        """The number of node labels and the label of padding."""
        return Vocabulary(self.num_labels, self.relation_padding)


class GraphTextDecoderAdapter:
    """Adapter for the decoder, whose only attention is called once per target."""

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: Any = None,
        **unused: Any,
    ) -> Any:
        stack = self.attention_stacks["cross"]
        stack.begin(prev_output_tokens, self.padding_idx, incremental_state is not None)
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state)

    def attend(self, *inputs: Any) -> Tensor:
        stack = self.attention_stacks["cross"]
        whole = stack.query_padding
        stack.query_padding = stack.next_query_padding()
        try:
            return super().attend(*inputs)
        finally:
            stack.query_padding = whole

    def attentions(self) -> dict[str, list[nn.Module]]:
        """Convert the attention module in place and return it by site."""
        return {"cross": [StochasticMultiheadAttention.adopt(self.attention)]}
