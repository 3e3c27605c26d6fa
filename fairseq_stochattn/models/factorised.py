"""RoBERTa's encoder with factorised embeddings, which are narrower than the layers.

    x = W·embedding,  p(token) = softmax(E·LayerNorm(act(W'·x)) + b)

ELECTRA's small models (Clark et al. 2020) and ALBERT (Lan et al. 2020) have such embeddings E.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from typing import ClassVar, Optional

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models.roberta import RobertaEncoder, RobertaLMHead
from fairseq.models.transformer import TransformerEncoder
from fairseq.modules import LayerNorm
from torch import nn

from .embeddings import SegmentEmbedding, add_segments

# The smallest default of --max-positions, so that a model that was pre-trained on short texts can
# be fine-tuned on longer ones.
MAX_POSITIONS = 512


@dataclass
class FactorisedConfig(FairseqDataclass):
    embedding_dim: Optional[int] = field(
        default=None,
        metadata={
            "help": "width of the embeddings; if it differs from --encoder-embed-dim, they are "
            "projected to that width"
        },
    )


class ProjectedEncoder(SegmentEmbedding, TransformerEncoder):
    """fairseq's encoder with a projection, if the embeddings are not as wide as the layers."""

    always_projects: ClassVar[bool] = False  # even if the widths are equal, as in ALBERT

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        width = args.encoder_embed_dim
        if self.always_projects or width != embed_tokens.embedding_dim:
            self.embed_project = nn.Linear(embed_tokens.embedding_dim, width)
            if self.layer_norm is not None:
                self.layer_norm = LayerNorm(width)


class FactorisedEncoder(RobertaEncoder):
    """RoBERTa's encoder with embeddings of their own width."""

    encoder_class: ClassVar[type[ProjectedEncoder]] = ProjectedEncoder

    def build_embedding(self, vocab_size: int, embedding_dim: int, padding_idx: int) -> nn.Module:
        return super().build_embedding(vocab_size, self.args.embedding_dim, padding_idx)

    def build_encoder(
        self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> nn.Module:
        encoder = self.encoder_class(args, dictionary, embed_tokens)
        add_segments(encoder, args)
        return encoder


class FactorisedHead(RobertaLMHead):
    """RoBERTa's language-model head with a projection from the layers' to the embeddings' width."""

    def __init__(
        self, args: Namespace, embedding_dim: int, vocabulary: int, weight: nn.Parameter | None
    ) -> None:
        super().__init__(embedding_dim, vocabulary, args.activation_fn, weight)
        self.dense = nn.Linear(args.encoder_embed_dim, embedding_dim)
