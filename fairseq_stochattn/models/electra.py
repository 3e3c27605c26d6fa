"""ELECTRA (Clark et al. 2020): ``electra_small``, ``_base``, ``_large`` and ``electra_<method>``.

A generator, a narrow RoBERTa, guesses masked tokens; the discriminator, which is the model, tells
the guesses from the original tokens. They share their embeddings. The generator and the
discriminator's head are built for ``--task electra`` alone, every other task gets the encoder.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor

from fairseq_stochattn.attention.doubling import batch_is_doubled, once, twice
from fairseq_stochattn.errors import require_positive
from fairseq_stochattn.models.backbone import Backbone, register_backbone
from fairseq_stochattn.models.config import join_configs, set_defaults
from fairseq_stochattn.models.electra_networks import Discriminator, Generator
from fairseq_stochattn.models.embeddings import EmbeddingConfig, set_layer_norm_eps
from fairseq_stochattn.models.layer_decay import LayerDecayConfig, mark_layers
from fairseq_stochattn.replacement import probabilities, put_tokens, sample_tokens

logger = logging.getLogger(__name__)

MAX_POSITIONS = 512  # so that a model pre-trained on short blocks can be fine-tuned on long ones
PRETRAINING = ("generator", "encoder.rtd_head")


@dataclass
class ElectraConfig(FairseqDataclass):
    embedding_dim: Optional[int] = field(
        default=None,
        metadata={
            "help": "width of the embeddings, projected to --encoder-embed-dim if it differs"
        },
    )
    generator_size: Optional[float] = field(
        default=None,
        metadata={"help": "width, FFN and heads of the generator, as a share of the discriminator"},
    )


@register_model("electra")
class ElectraModel(RobertaModel):
    """The discriminator as a RoBERTa model, and in pre-training the generator."""

    own_flags: ClassVar[tuple[type[FairseqDataclass], ...]] = (EmbeddingConfig, ElectraConfig)

    def __init__(
        self, args: Namespace, encoder: Discriminator, generator: Generator | None = None
    ) -> None:
        super().__init__(args, encoder)
        self.generator = generator
        if generator is not None:
            generator.apply(init_bert_params)

    @staticmethod
    def add_args(parser: Any) -> None:
        RobertaModel.add_args(parser)
        flags = join_configs("ElectraFlags", *ElectraModel.own_flags)
        gen_parser_from_dataclass(parser, flags(), delete_default=True)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> ElectraModel:
        require_positive(args, "embedding_dim", "generator_size")
        if getattr(args, "max_positions", None) is None:
            args.max_positions = max(MAX_POSITIONS, task.max_positions())
        pretraining = getattr(task, "needs_generator", False)
        encoder = Discriminator(args, task.source_dictionary, pretraining)
        generator = Generator(args, encoder.sentence_encoder) if pretraining else None
        model = cls(args, encoder, generator)
        set_layer_norm_eps(model, args)
        return model

    def forward(
        self,
        src_tokens: Tensor,
        *args: Any,
        masked_tokens: Tensor | None = None,
        chance: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As RoBERTa's: logits (B, T) that a token was replaced, or features (B, T, C).

        With ``masked_tokens`` (B, T) it is a step of pre-training: the generator's ``guesses``
        (n, V) at these positions with their ``probabilities``, the ``corrupted`` tokens (B, T) with
        samples of them (by ``chance`` (n,), uniform, where it is given), and the discriminator on
        these. It is one call because distributed training wants one a step. Of a doubled batch
        ``guesses`` and ``corrupted`` are those of one half, which both halves share.
        """
        if masked_tokens is None or self.generator is None:
            return super().forward(src_tokens, *args, **kwargs)
        doubled = batch_is_doubled()
        if doubled:  # one corruption for both halves
            src_tokens, masked_tokens = once(src_tokens), once(masked_tokens)
        guesses = self.generator(src_tokens, masked_tokens)
        p = probabilities(guesses)
        if chance is None:
            chance = torch.rand(len(p), dtype=torch.float64, device=p.device)
        samples = sample_tokens(guesses, p, chance, never=self.encoder.dictionary.pad())
        corrupted = put_tokens(src_tokens, masked_tokens, samples)
        x, extra = super().forward(twice(corrupted) if doubled else corrupted, *args, **kwargs)
        extra.update(guesses=guesses, probabilities=p, corrupted=corrupted)
        return x, extra

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """From pre-training to fine-tuning and back: drop what this model lacks, keep what is new.

        A generator that is new still has the embeddings of the checkpoint's discriminator.
        """
        prefix = f"{name}." if name else ""
        own = {f"{prefix}{key}": p for key, p in self.state_dict(keep_vars=True).items()}
        for part in (f"{prefix}{part}." for part in PRETRAINING):
            stored = [key for key in state_dict if key.startswith(part)]
            wanted = [key for key in own if key.startswith(part)]
            if stored and not wanted:
                logger.info("dropping %s* of the checkpoint: it belongs to pre-training", part)
                for key in stored:
                    del state_dict[key]
            elif wanted and not stored:
                logger.info("%s* is new: keeping its initial parameters", part)
                known = {id(own[key]): value for key, value in state_dict.items() if key in own}
                state_dict.update({key: known.get(id(own[key]), own[key]) for key in wanted})
        super().upgrade_state_dict_named(state_dict, name)


# Clark et al. 2020, Table 6. Where the embeddings have no width of their own, it is the layers'.
SIZES: dict[str, dict[str, float]] = {
    "electra_small": {
        "encoder_embed_dim": 256,
        "encoder_ffn_embed_dim": 1024,
        "encoder_attention_heads": 4,
        "encoder_layers": 12,
        "embedding_dim": 128,
        "generator_size": 1 / 4,
    },
    "electra_base": {
        "encoder_embed_dim": 768,
        "encoder_ffn_embed_dim": 3072,
        "encoder_attention_heads": 12,
        "encoder_layers": 12,
        "generator_size": 1 / 3,
    },
    "electra_large": {
        "encoder_embed_dim": 1024,
        "encoder_ffn_embed_dim": 4096,
        "encoder_attention_heads": 16,
        "encoder_layers": 24,
        "generator_size": 1 / 4,
    },
}


def _preset(sizes: dict[str, float]) -> Callable[[Any], None]:
    def preset(args: Any) -> None:
        set_defaults(args, **sizes, segment_embeddings=2)
        set_defaults(args, embedding_dim=args.encoder_embed_dim, layer_norm_eps=1e-5)
        base_architecture(args)

    return preset


for _arch, _sizes in {"electra": SIZES["electra_base"], **SIZES}.items():
    register_model_architecture("electra", _arch)(_preset(_sizes))

register_backbone(
    Backbone(
        name="electra",
        model=ElectraModel,
        sites=("encoder",),
        owners=lambda model: (model.encoder.sentence_encoder,),
        extra_config=LayerDecayConfig,
        finish=lambda model, config: mark_layers(model.encoder.sentence_encoder, config),
    )
)
