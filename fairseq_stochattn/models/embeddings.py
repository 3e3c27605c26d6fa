"""What BERT and ELECTRA add to RoBERTa's embeddings: segments, and a projection to the width.

    x = project(dropout(LayerNorm(token + position + segment)))

Segments tell the sentences of a pair apart; ELECTRA's small models embed more narrowly than their
layers are wide. Both are absent in plain RoBERTa and then cost nothing. And their layers normalise
with another ε.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Container
from dataclasses import dataclass, field, fields

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.errors import require_not_negative, require_positive


@dataclass
class EmbeddingConfig(FairseqDataclass):
    segment_embeddings: int = field(
        default=0,
        metadata={
            "help": "number of segment embeddings (BERT and ELECTRA have 2): the first for a "
            "single sentence and the first of a pair, the second for the other; 0 has none"
        },
    )
    layer_norm_eps: float = field(
        default=1e-5,
        metadata={"help": "ε of every layer normalisation; BERT's and ELECTRA's have 1e-12"},
    )


def segments_of(tokens: Tensor, separator: int, number: int) -> Tensor:
    """(B, T): 0 up to the first separator, itself included, then 1.

    ``[CLS] A [SEP] B [SEP]`` is a pair, also where its end was cut off. More than two separators
    are running text, which is all one segment.
    """
    ends = tokens.eq(separator)
    before = ends.cumsum(dim=1) - ends.long()
    pair = ends.sum(dim=1, keepdim=True) <= 2
    return (before * pair).clamp(max=number - 1)


class RicherEmbedding:
    """Mixin over a fairseq Transformer encoder: segments before, a projection behind."""

    embed_segments: nn.Embedding  # these two only where there are any
    embed_project: nn.Linear

    def forward_embedding(
        self, src_tokens: Tensor, token_embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if hasattr(self, "embed_segments"):
            if token_embedding is None:
                token_embedding = self.embed_tokens(src_tokens)
            number = self.embed_segments.num_embeddings
            segments = segments_of(src_tokens, self.dictionary.eos(), number)
            # fairseq multiplies what it is given by its scale; segments come unscaled.
            token_embedding = token_embedding + self.embed_segments(segments) / self.embed_scale
        x, embed = super().forward_embedding(src_tokens, token_embedding)
        return self.embed_project(x) if hasattr(self, "embed_project") else x, embed


def add_segments(encoder: nn.Module, config: EmbeddingConfig) -> None:
    """Give a hosted encoder the segment embeddings that ``config`` asks for."""
    require_not_negative(config, "segment_embeddings")
    if config.segment_embeddings:
        weight = encoder.embed_tokens.weight
        encoder.embed_segments = nn.Embedding(config.segment_embeddings, weight.size(1))
        # BERT's initialisation, which fairseq gives to RoBERTa's embeddings too.
        torch.nn.init.normal_(encoder.embed_segments.weight, std=0.02)


def set_layer_norm_eps(model: nn.Module, config: EmbeddingConfig) -> None:
    """fairseq builds its layer normalisations, apex' fused ones too, with an ε of its own."""
    require_positive(config, "layer_norm_eps")
    for module in model.modules():
        if hasattr(module, "normalized_shape"):
            module.eps = config.layer_norm_eps


def beyond_plain(config: Namespace, known: Container[str] = ()) -> list[str]:
    """The flags of a model that its plain arch, with the flags ``known``, has not."""
    given = [
        (entry.name, getattr(config, entry.name, entry.default), entry.default)
        for entry in fields(EmbeddingConfig)
        if not entry.name.startswith("_") and entry.name not in known
    ]
    return [
        f"--{name.replace('_', '-')} {value}" for name, value, default in given if value != default
    ]
