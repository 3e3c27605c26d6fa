"""ALBERT (Lan et al. 2020): ``albert_base`` to ``albert_xxlarge`` and ``albert_<method>``.

A BERT whose L layers have the same parameters and whose embeddings are factorised. The layers are
separate modules around shared linear and normalisation layers, so that attention methods have a
state and parameters of their own in each of the L layers, as in every other model. Checkpoints
contain the shared parameters once, as those of layer 0.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable
from typing import Any, ClassVar

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from torch import Tensor, nn

from ..compat import require_positive
from ..core.pruning import number_after
from .backbone import Backbone, register_backbone
from .config import join_configs, set_defaults
from .embeddings import EmbeddingConfig, set_layer_norm_eps
from .factorised import (
    MAX_POSITIONS,
    FactorisedConfig,
    FactorisedEncoder,
    FactorisedHead,
    ProjectedEncoder,
)
from .layer_decay import LayerDecayConfig, mark_layers
from .pruning import PrunesLayers, take_kept_layers
from .roberta import HeadsFromPooler

LAYERS = "encoder.sentence_encoder.layers."  # the prefix of the layers' parameters in a checkpoint


def with_same_parameters(layer: nn.Module) -> nn.Module:
    """A copy of the layer whose modules with parameters are the layer's own modules."""
    own = (m for m in layer.modules() if any(True for _ in m.parameters(recurse=False)))
    return copy.deepcopy(layer, {id(module): module for module in own})


class SharedLayersEncoder(ProjectedEncoder):
    """fairseq's encoder with projected embeddings and L layers that share all parameters."""

    always_projects = True

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        # One layer is built, not L: L layers of the largest model would need 10 GB for a moment.
        one = Namespace(**{**vars(args), "encoder_layers": min(1, args.encoder_layers)})
        super().__init__(one, dictionary, embed_tokens)
        self.args, self.num_layers = args, args.encoder_layers
        for first in list(self.layers.children()):
            self.layers.extend(with_same_parameters(first) for _ in range(self.num_layers - 1))

    def apply(self, fn: Callable[[nn.Module], None]) -> nn.Module:
        """Call ``fn`` on all modules, once on modules that layers share."""
        for module in reversed(list(self.modules())):
            fn(module)
        return self

    def shared_names(self) -> set[str]:
        """The names of the shared parameters, as in the state of a layer."""
        layers = list(self.layers.children())
        shared = {id(p) for p in layers[0].parameters()}
        for layer in layers[1:]:
            shared &= {id(p) for p in layer.parameters()}
        return {name for name, p in layers[0].named_parameters() if id(p) in shared}

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:
        """The state, in which the shared parameters are only those of layer 0."""
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        layers = list(self.layers.children())
        names = self.shared_names() if len(layers) > 1 else ()
        for number in range(1, len(layers)):
            for name in names:
                state.pop(f"{prefix}layers.{number}.{name}", None)
        return state

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name in self.shared_names():
            repeat_first_layer(state_dict, f"{prefix}layers.", name, len(self.layers))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def repeat_first_layer(state: dict[str, Tensor], layers: str, name: str, number: int) -> None:
    """Add the entry ``name`` of layer 0 to ``state`` for all further of ``number`` layers."""
    if f"{layers}0.{name}" in state:
        for layer in range(1, number):
            state.setdefault(f"{layers}{layer}.{name}", state[f"{layers}0.{name}"])


class AlbertEncoder(FactorisedEncoder):
    """RoBERTa's encoder with ALBERT's embeddings, layers and head."""

    encoder_class = SharedLayersEncoder

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: nn.Parameter | None
    ) -> nn.Module:
        return FactorisedHead(self.args, self.args.embedding_dim, output_dim, weight)


@register_model("albert")
class AlbertModel(PrunesLayers, HeadsFromPooler, RobertaModel):
    """RoBERTa's model with the encoder of ALBERT."""

    own_flags: ClassVar[tuple[type[FairseqDataclass], ...]] = (EmbeddingConfig, FactorisedConfig)

    @staticmethod
    def add_args(parser: Any) -> None:
        RobertaModel.add_args(parser)
        flags = join_configs("AlbertFlags", *AlbertModel.own_flags)
        gen_parser_from_dataclass(parser, flags(), delete_default=True)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> AlbertModel:
        require_positive(args, "embedding_dim")
        if getattr(args, "max_positions", None) is None:
            args.max_positions = max(MAX_POSITIONS, task.max_positions())
        kept = take_kept_layers(args)
        model = cls(args, AlbertEncoder(args, task.source_dictionary))
        model.kept_layers = kept
        set_layer_norm_eps(model, args)
        return model

    def pruned(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the state without the layers that this model lacks.

        All layers get the shared parameters first, because layer 0, which has them, may be left
        out. A state with methods in the same layers as in this model was pruned before.
        """
        kept = self.kept_layers.get("encoder")
        if kept is None or _layers_with_methods(state) == _layers_with_methods(self.state_dict()):
            return state
        state = dict(state)
        for name in self.encoder.sentence_encoder.shared_names():
            repeat_first_layer(state, LAYERS, name, kept.total)
        return super().pruned(state)


def _layers_with_methods(state: dict[str, Tensor]) -> set[int | None]:
    """The numbers of the layers that have parameters of attention methods in ``state``."""
    return {
        number_after(LAYERS, key)
        for key in state
        if key.startswith(LAYERS) and ".attention_methods." in key
    }


# Lan et al. 2020, Table 1, with the feed-forward widths and heads of the released models. As in
# version 2 of these models, there is no dropout.
SIZES: dict[str, dict[str, int]] = {
    "albert_base": {
        "encoder_embed_dim": 768,
        "encoder_ffn_embed_dim": 3072,
        "encoder_attention_heads": 12,
        "encoder_layers": 12,
    },
    "albert_large": {
        "encoder_embed_dim": 1024,
        "encoder_ffn_embed_dim": 4096,
        "encoder_attention_heads": 16,
        "encoder_layers": 24,
    },
    "albert_xlarge": {
        "encoder_embed_dim": 2048,
        "encoder_ffn_embed_dim": 8192,
        "encoder_attention_heads": 16,
        "encoder_layers": 24,
    },
    "albert_xxlarge": {
        "encoder_embed_dim": 4096,
        "encoder_ffn_embed_dim": 16384,
        "encoder_attention_heads": 64,
        "encoder_layers": 12,
    },
}


def _preset(sizes: dict[str, int]) -> Callable[[Any], None]:
    """Return the function that sets the defaults of an arch with these sizes."""

    def preset(args: Any) -> None:
        set_defaults(args, **sizes, embedding_dim=128, segment_embeddings=2, layer_norm_eps=1e-12)
        set_defaults(args, activation_fn="gelu_accurate", dropout=0.0, attention_dropout=0.0)
        base_architecture(args)

    return preset


for _arch, _sizes in {"albert": SIZES["albert_base"], **SIZES}.items():
    register_model_architecture("albert", _arch)(_preset(_sizes))

register_backbone(
    Backbone(
        name="albert",
        model=AlbertModel,
        sites=("encoder",),
        owners=lambda model: (model.encoder.sentence_encoder,),
        extra_config=LayerDecayConfig,
        # As in the BABN paper, whose maps for ALBERT have 0.7 million parameters.
        defaults={"babn_share_layers": True, "babn_max_positions": 512},
        finish=lambda model, config: mark_layers(model.encoder.sentence_encoder, config),
    )
)
