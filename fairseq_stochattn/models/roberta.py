"""RoBERTa for masked language modelling and classification: registers ``roberta_<method>``.

With ``--segment-embeddings 2 --layer-norm-eps 1e-12`` the model is BERT's encoder.
"""

from __future__ import annotations

import logging
from argparse import Namespace

from fairseq.models.roberta import RobertaModel
from torch import Tensor, nn

from .backbone import Backbone, register_backbone
from .config import join_configs
from .embeddings import EmbeddingConfig, add_segments, set_layer_norm_eps
from .layer_decay import LayerDecayConfig, mark_layers

logger = logging.getLogger(__name__)

# An imported checkpoint stores BERT's pooler (dense layer and tanh) as a classification head with 0
# classes. Plain fairseq ignores heads that its model lacks, so it can load the checkpoint too.
POOLER = "pooler"


class HeadsFromPooler:
    """Mixin for RoBERTa: new classification heads are initialised by the checkpoint's pooler.

    A head that the checkpoint contains keeps its weights. A head whose dense layer has another
    shape keeps its random initialisation.
    """

    classification_heads: nn.ModuleDict

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        heads = f"{name}.classification_heads." if name else "classification_heads."
        pooler: dict[str, Tensor] = {}
        if POOLER not in self.classification_heads:  # else the user named a head "pooler"
            prefix = f"{heads}{POOLER}."
            keys = [key for key in state_dict if key.startswith(prefix)]
            pooler = {key.removeprefix(prefix): state_dict.pop(key) for key in keys}
        stored = {k.removeprefix(heads).split(".")[0] for k in state_dict if k.startswith(heads)}
        super().upgrade_state_dict_named(state_dict, name)
        for head in [head for head in self.classification_heads if head not in stored]:
            given = {f"{heads}{head}.{k}": v for k, v in pooler.items() if k.startswith("dense.")}
            if given and all(state_dict[k].shape == v.shape for k, v in given.items()):
                logger.info("the head %s starts from the checkpoint's pooler", head)
                state_dict.update(given)


def finish(model: nn.Module, config: Namespace) -> None:
    """Apply the flags that fairseq's RoBERTa lacks.

    They set the number of segment embeddings, ε in LayerNorm and the layer-wise learning rates.
    """
    add_segments(model.encoder.sentence_encoder, config)
    set_layer_norm_eps(model, config)
    mark_layers(model.encoder.sentence_encoder, config)


register_backbone(
    Backbone(
        name="roberta",
        model=RobertaModel,
        sites=("encoder",),
        owners=lambda model: (model.encoder.sentence_encoder,),
        mixins=(HeadsFromPooler,),
        extra_config=join_configs("EncoderConfig", EmbeddingConfig, LayerDecayConfig),
        finish=finish,
    )
)
