"""The embeddings of BERT and ELECTRA: segment embeddings and a projection to the layers' width.

    x = project(dropout(LayerNorm(token + position + segment)))

Segment embeddings mark the first and the second sentence of a pair. The projection is for ELECTRA's
small models, whose embeddings are narrower than their layers. RoBERTa has neither segment
embeddings nor a projection. BERT and ELECTRA also have another ε than RoBERTa in LayerNorm, the
constant that is added to the variance.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Container
from dataclasses import dataclass, field, fields

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from ..compat import require_not_negative, require_positive


@dataclass
class EmbeddingConfig(FairseqDataclass):
    segment_embeddings: int = field(
        default=0,
        metadata={
            "help": "number of segment embeddings (BERT and ELECTRA: 2; 0 means none). The first "
            "is added to single sentences and to the first sentence of a pair, the second to the "
            "second sentence of a pair"
        },
    )
    layer_norm_eps: float = field(
        default=1e-5,
        metadata={"help": "ε of every layer normalisation (BERT and ELECTRA: 1e-12)"},
    )


def segments_of(tokens: Tensor, separator: int, number: int) -> Tensor:
    """The segment of every token, (B, T): 0 up to and including the first separator, then 1.

    ``[CLS] A [SEP] B [SEP]`` is a pair, even if its end was truncated. In a row with more than two
    separators, which is running text, all tokens have segment 0. ``number`` is the number of
    segments.
    """
    ends = tokens.eq(separator)
    before = ends.cumsum(dim=1) - ends.long()
    pair = ends.sum(dim=1, keepdim=True) <= 2
    return (before * pair).clamp(max=number - 1)


class SegmentEmbedding:
    """Mixin for fairseq's Transformer encoders: adds segment embeddings and projects the sum."""

    # Each of the two attributes exists only if the model uses it.
    embed_segments: nn.Embedding
    embed_project: nn.Linear

    def forward_embedding(
        self, src_tokens: Tensor, token_embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if hasattr(self, "embed_segments"):
            if token_embedding is None:
                token_embedding = self.embed_tokens(src_tokens)
            number = self.embed_segments.num_embeddings
            segments = segments_of(src_tokens, self.dictionary.eos(), number)
            # fairseq multiplies token embeddings by embed_scale, but segments must stay unscaled.
            token_embedding = token_embedding + self.embed_segments(segments) / self.embed_scale
        x, embed = super().forward_embedding(src_tokens, token_embedding)
        return self.embed_project(x) if hasattr(self, "embed_project") else x, embed


def add_segments(encoder: nn.Module, config: EmbeddingConfig) -> None:
    """Add as many segment embeddings as ``config`` says to an encoder."""
    require_not_negative(config, "segment_embeddings")
    if config.segment_embeddings:
        weight = encoder.embed_tokens.weight
        encoder.embed_segments = nn.Embedding(config.segment_embeddings, weight.size(1))
        # BERT's initialisation, which fairseq uses for RoBERTa's embeddings too.
        torch.nn.init.normal_(encoder.embed_segments.weight, std=0.02)


def set_layer_norm_eps(model: nn.Module, config: EmbeddingConfig) -> None:
    """Set ε of every layer normalisation, for which fairseq has no flag."""
    require_positive(config, "layer_norm_eps")
    for module in model.modules():
        if hasattr(module, "normalized_shape"):  # a LayerNorm of torch or of apex
            module.eps = config.layer_norm_eps


def flags_plain_fairseq_lacks(config: Namespace, known: Container[str] = ()) -> list[str]:
    """The embedding flags of ``config`` that plain fairseq lacks and that differ from the default.

    ``known`` contains the flags of the plain arch, which are left out.
    """
    given = [
        (entry.name, getattr(config, entry.name, entry.default), entry.default)
        for entry in fields(EmbeddingConfig)
        if not entry.name.startswith("_") and entry.name not in known
    ]
    return [
        f"--{name.replace('_', '-')} {value}" for name, value, default in given if value != default
    ]
