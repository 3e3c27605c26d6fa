"""ELECTRA (Clark et al. 2020): ``electra_small``, ``_base``, ``_large`` and ``electra_<method>``.

The generator, a narrow masked language model, samples replacements for masked tokens. The
discriminator predicts which tokens were replaced, and is the model that is fine-tuned later. The
two networks share their embeddings. The generator and the discriminator's head are built only for
``--task electra``; every other task uses only the discriminator's encoder.
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

from ..compat import require_positive
from ..core.paired_batch import batch_is_paired, clean_half, twice
from .backbone import Backbone, register_backbone
from .config import join_configs, set_defaults
from .electra_networks import Discriminator, Generator
from .electra_sampling import probabilities, replace_tokens, sample_tokens
from .embeddings import EmbeddingConfig, set_layer_norm_eps
from .factorised import MAX_POSITIONS, FactorisedConfig
from .layer_decay import LayerDecayConfig, mark_layers
from .pruning import PrunesLayers, take_kept_layers

logger = logging.getLogger(__name__)

PRETRAINING_MODULES = ("generator", "encoder.rtd_head")  # modules that exist only in pre-training


@dataclass
class ElectraConfig(FairseqDataclass):
    generator_size: Optional[float] = field(
        default=None,
        metadata={
            "help": "size of the generator (width, feed-forward width and number of heads) as a "
            "fraction of the discriminator's"
        },
    )


@register_model("electra")
class ElectraModel(PrunesLayers, RobertaModel):
    """The discriminator as a RoBERTa model; in pre-training it also contains the generator."""

    own_flags: ClassVar[tuple[type[FairseqDataclass], ...]] = (
        EmbeddingConfig,
        FactorisedConfig,
        ElectraConfig,
    )

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
        kept = take_kept_layers(args, pretraining)
        encoder = Discriminator(args, task.source_dictionary, pretraining)
        generator = Generator(args, encoder.sentence_encoder) if pretraining else None
        model = cls(args, encoder, generator)
        model.kept_layers = kept
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
        """Return RoBERTa's output, or in pre-training the logit of each token that it was replaced.

        With the mask ``masked_tokens`` (B, T), which marks n tokens, this is a step of
        pre-training, and the logits have shape (B, T). The generator predicts the masked tokens,
        they are replaced by samples of its predictions, and the discriminator reads the result.
        The second return value then contains the generator's logits ``guesses`` (n, V), their
        softmax ``probabilities`` (n, V) and the tokens with replacements ``corrupted`` (B, T).
        ``chance`` (n,), uniform on [0, 1), makes the samples reproducible. The two networks run in
        one call because DistributedDataParallel allows one forward pass per step. The two halves
        of a paired batch get the same replacements, and the three tensors have the rows of one
        half.
        """
        if masked_tokens is None or self.generator is None:
            return super().forward(src_tokens, *args, **kwargs)
        paired = batch_is_paired()
        if paired:
            src_tokens, masked_tokens = clean_half(src_tokens), clean_half(masked_tokens)
            chance = None if chance is None else clean_half(chance)
        guesses = self.generator(src_tokens, masked_tokens)
        p = probabilities(guesses)
        if chance is None:
            chance = torch.rand(len(p), dtype=torch.float64, device=p.device)
        samples = sample_tokens(guesses, p, chance, excluded=self.encoder.dictionary.pad())
        corrupted = replace_tokens(src_tokens, masked_tokens, samples)
        x, extra = super().forward(twice(corrupted) if paired else corrupted, *args, **kwargs)
        extra.update(guesses=guesses, probabilities=p, corrupted=corrupted)
        return x, extra

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Adapt a checkpoint from pre-training to fine-tuning, or the other way round.

        Pre-training modules that this model lacks are dropped from the checkpoint. Pre-training
        modules that the checkpoint lacks keep their initial parameters. A new generator shares the
        checkpoint's embeddings.
        """
        prefix = f"{name}." if name else ""
        own = {f"{prefix}{key}": p for key, p in self.state_dict(keep_vars=True).items()}
        for part in (f"{prefix}{part}." for part in PRETRAINING_MODULES):
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


# Clark et al. 2020, Table 6. Without ``embedding_dim``, embeddings are as wide as the layers.
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
    """Return the function that sets the defaults of an arch with these sizes."""

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
