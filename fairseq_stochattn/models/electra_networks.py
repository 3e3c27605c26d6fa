"""The two networks of ELECTRA (Clark et al. 2020): fairseq's RoBERTa over shared embeddings.

The discriminator embeds more narrowly than its layers are wide where the arch says so; the
generator is a masked language model on the discriminator's embeddings.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, ClassVar

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaEncoder, RobertaLMHead
from fairseq.models.transformer import TransformerEncoder
from fairseq.modules import LayerNorm
from torch import Tensor, nn

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.embeddings import RicherEmbedding, add_segments

SHARED = ("embed_positions", "embed_segments", "layernorm_embedding")  # and embed_tokens


class ProjectedEncoder(RicherEmbedding, TransformerEncoder):
    """fairseq's encoder over embeddings that may have another width than its layers."""

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        width = args.encoder_embed_dim
        if width != embed_tokens.embedding_dim:
            self.embed_project = nn.Linear(embed_tokens.embedding_dim, width)
            if self.layer_norm is not None:
                self.layer_norm = LayerNorm(width)


class Discriminator(RobertaEncoder):
    """RoBERTa over embeddings of their own width; its head, in pre-training, finds replacements."""

    def __init__(self, args: Namespace, dictionary: Dictionary, pretraining: bool) -> None:
        super().__init__(args, dictionary)
        self.rtd_head = None
        if pretraining:
            self.rtd_head = ReplacedTokenHead(args.encoder_embed_dim, args.activation_fn)

    def build_embedding(self, vocab_size: int, embedding_dim: int, padding_idx: int) -> nn.Module:
        return super().build_embedding(vocab_size, self.args.embedding_dim, padding_idx)

    def build_encoder(
        self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> nn.Module:
        encoder = ProjectedEncoder(args, dictionary, embed_tokens)
        add_segments(encoder, args)
        return encoder

    def build_lm_head(self, *args: Any, **kwargs: Any) -> None:
        """It does not name tokens."""

    def output_layer(self, features: Tensor, **unused: Any) -> Tensor:
        if self.rtd_head is None:
            raise UsageError("electra archs are pre-trained by --task electra --criterion electra")
        return self.rtd_head(features)


class ReplacedTokenHead(nn.Module):
    """(B, T, C) → (B, T): the logit that a token is not the original one."""

    def __init__(self, width: int, activation_fn: str) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation_fn = utils.get_activation_fn(activation_fn)
        self.out_proj = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.out_proj(self.activation_fn(self.dense(features))).squeeze(-1)


class Generator(nn.Module):
    """A masked language model on the discriminator's embeddings, ``generator_size`` as wide."""

    auxiliary: ClassVar[bool] = True  # its attention stays as it is, see ``heads.find_heads``

    def __init__(self, args: Namespace, discriminator: TransformerEncoder) -> None:
        super().__init__()
        args = generator_args(args)
        tokens, dictionary = discriminator.embed_tokens, discriminator.dictionary
        self.sentence_encoder = ProjectedEncoder(args, dictionary, tokens)
        for name in SHARED:
            if hasattr(discriminator, name):
                setattr(self.sentence_encoder, name, getattr(discriminator, name))
        weight = None if args.untie_weights_roberta else tokens.weight
        self.lm_head = GeneratorHead(args, tokens.embedding_dim, len(dictionary), weight)

    def forward(self, src_tokens: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """Logits (n, V) at the masked tokens, or (B, T, V) at all."""
        features = self.sentence_encoder(src_tokens)["encoder_out"][0].transpose(0, 1)
        return self.lm_head(features, masked_tokens)


class GeneratorHead(RobertaLMHead):
    """RoBERTa's, from the generator's width to that of the embeddings it is tied to."""

    def __init__(
        self, args: Namespace, embedding_dim: int, vocabulary: int, weight: nn.Parameter | None
    ) -> None:
        super().__init__(embedding_dim, vocabulary, args.activation_fn, weight)
        self.dense = nn.Linear(args.encoder_embed_dim, embedding_dim)


def generator_args(args: Namespace) -> Namespace:
    """The discriminator's, with narrower layers."""
    heads = max(1, round(args.encoder_attention_heads * args.generator_size))
    head_dim = max(1, round(args.encoder_embed_dim * args.generator_size / heads))
    sizes = {
        "encoder_attention_heads": heads,
        "encoder_embed_dim": heads * head_dim,
        "encoder_ffn_embed_dim": max(1, round(args.encoder_ffn_embed_dim * args.generator_size)),
    }
    return Namespace(**{**vars(args), **sizes})
