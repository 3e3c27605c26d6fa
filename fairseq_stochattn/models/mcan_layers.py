"""The parts of MCAN (Yu et al. 2019): question encoder, image decoder, attention pooling.

Shapes: B questions, T words, R image regions, C the width of all layers.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from ..core.distributions import at_least_float


class QuestionEncoder(FairseqEncoder):
    """Encodes a question by word vectors, an LSTM and layers of self-attention.

    The LSTM reads from left to right. Questions are padded on the right, so padding changes no
    state of a word.
    """

    def __init__(
        self, dictionary: Dictionary, embed_tokens: nn.Embedding, config: TransformerConfig
    ) -> None:
        super().__init__(dictionary)
        self.padding_idx = embed_tokens.padding_idx
        self.embed_tokens = embed_tokens
        self.lstm = nn.LSTM(embed_tokens.embedding_dim, config.encoder.embed_dim, batch_first=True)
        self.layers = nn.ModuleList(
            TransformerEncoderLayerBase(config) for _ in range(config.encoder.layers)
        )

    def forward(self, src_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words' states (T, B, C) and their padding (B, T) for tokens (B, T)."""
        padding = src_tokens.eq(self.padding_idx)
        x = self.lstm(self.embed_tokens(src_tokens))[0].transpose(0, 1)  # (T, B, C)
        blocked = padding if padding.any() else None
        for layer in self.layers:
            x = layer(x, blocked)
        return x, padding


class ImageDecoder(nn.Module):
    """Layers of self-attention over regions and guided attention from regions to words.

    The self-attention is not causal, and regions have no positions: their order does not matter.
    """

    def __init__(self, feature_width: int, config: TransformerConfig) -> None:
        super().__init__()
        self.project = nn.Linear(feature_width, config.decoder.embed_dim)
        self.layers = nn.ModuleList(
            TransformerDecoderLayerBase(config) for _ in range(config.decoder.layers)
        )
        for layer in self.layers:
            layer.need_attn = False  # by default fairseq's layer computes mean weights in eval

    def forward(
        self, regions: Tensor, padding: Tensor, words: Tensor, word_padding: Tensor
    ) -> Tensor:
        """Return the regions' states (R, B, C).

        ``regions`` are features (B, R, width) with padding (B, R), ``words`` are states (T, B, C)
        with padding (B, T).
        """
        x = self.project(regions.type_as(self.project.weight)).transpose(0, 1)  # (R, B, C)
        blocked = padding if padding.any() else None
        blocked_words = word_padding if word_padding.any() else None
        for layer in self.layers:
            x = layer(x, words, blocked_words, self_attn_padding_mask=blocked)[0]
        return x


class AttentionPooling(nn.Module):
    """Reduces a sequence to one vector: softmax(MLP(X))ᵀ X, then a linear map (Yu et al., §4.3)."""

    def __init__(self, dim: int, hidden: int, out: int, dropout: float) -> None:
        super().__init__()
        self.dropout = FairseqDropout(dropout, module_name=type(self).__name__)
        self.hidden = nn.Linear(dim, hidden)
        self.score = nn.Linear(hidden, 1)
        self.project = nn.Linear(dim, out)

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector (B, out) and the weights (B, T) for x (T, B, C), padding (B, T).

        If everything is padding, the weights are equal.
        """
        x = x.transpose(0, 1)  # (B, T, C)
        scores = at_least_float(self.score(self.dropout(self.hidden(x).relu()))).squeeze(-1)
        lowest = torch.finfo(scores.dtype).min  # with −inf, a row of padding only would be NaN
        weights = scores.masked_fill(padding, lowest).softmax(dim=-1)  # (B, T)
        pooled = torch.bmm(weights.unsqueeze(1).type_as(x), x).squeeze(1)  # (B, C)
        return self.project(pooled), weights


def layer_config(args: Any) -> TransformerConfig:
    """Return fairseq's configuration of Transformer layers for the flags of MCAN."""
    config = TransformerConfig()
    for part in (config.encoder, config.decoder):
        part.embed_dim = args.mcan_dim
        part.ffn_embed_dim = args.mcan_ffn_dim
        part.attention_heads = args.mcan_heads
        part.layers = args.mcan_layers
    config.dropout = args.dropout
    config.attention_dropout = args.attention_dropout
    config.activation_dropout = args.activation_dropout
    return config
