"""The two networks of ELECTRA (Clark et al. 2020), built from fairseq's RoBERTa.

Generator and discriminator share their embeddings, which may be narrower than the layers.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, ClassVar

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoder
from torch import Tensor, nn

from ..compat import UsageError
from .factorised import FactorisedEncoder, FactorisedHead, ProjectedEncoder

# Modules that the generator shares with the discriminator, beside embed_tokens.
SHARED = ("embed_positions", "embed_segments", "layernorm_embedding")


class Discriminator(FactorisedEncoder):
    """RoBERTa's encoder. In pre-training it has a head that predicts which tokens were replaced."""

    def __init__(self, args: Namespace, dictionary: Dictionary, pretraining: bool) -> None:
        super().__init__(args, dictionary)
        self.rtd_head = None
        if pretraining:
            self.rtd_head = ReplacedTokenHead(args.encoder_embed_dim, args.activation_fn)

    def build_lm_head(self, *args: Any, **kwargs: Any) -> None:
        """Return None, because the discriminator does not predict tokens."""

    def output_layer(self, features: Tensor, **unused: Any) -> Tensor:
        if self.rtd_head is None:
            raise UsageError("electra archs are pre-trained by --task electra --criterion electra")
        return self.rtd_head(features)


class ReplacedTokenHead(nn.Module):
    """Predicts for every token the logit that it was replaced: (B, T, C) → (B, T)."""

    def __init__(self, width: int, activation_fn: str) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation_fn = utils.get_activation_fn(activation_fn)
        self.out_proj = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.out_proj(self.activation_fn(self.dense(features))).squeeze(-1)


class Generator(nn.Module):
    """A masked language model with the discriminator's embeddings and narrower layers."""

    auxiliary: ClassVar[bool] = True  # core/heads.py skips the attention of auxiliary modules

    def __init__(self, args: Namespace, discriminator: TransformerEncoder) -> None:
        super().__init__()
        args = generator_args(args)
        tokens, dictionary = discriminator.embed_tokens, discriminator.dictionary
        self.sentence_encoder = ProjectedEncoder(args, dictionary, tokens)
        for name in SHARED:
            if hasattr(discriminator, name):
                setattr(self.sentence_encoder, name, getattr(discriminator, name))
        weight = None if args.untie_weights_roberta else tokens.weight
        self.lm_head = FactorisedHead(args, tokens.embedding_dim, len(dictionary), weight)

    def forward(self, src_tokens: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """Return the logits (n, V) at the n masked tokens.

        Without ``masked_tokens`` the method returns the logits at all tokens, (B, T, V).
        """
        features = self.sentence_encoder(src_tokens)["encoder_out"][0].transpose(0, 1)
        return self.lm_head(features, masked_tokens)


def generator_args(args: Namespace) -> Namespace:
    """The flags of the generator: the discriminator's flags with narrower layers."""
    heads = max(1, round(args.encoder_attention_heads * args.generator_size))
    head_dim = max(1, round(args.encoder_embed_dim * args.generator_size / heads))
    sizes = {
        "encoder_attention_heads": heads,
        "encoder_embed_dim": heads * head_dim,
        "encoder_ffn_embed_dim": max(1, round(args.encoder_ffn_embed_dim * args.generator_size)),
    }
    return Namespace(**{**vars(args), **sizes})
