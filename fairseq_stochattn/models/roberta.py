"""RoBERTa for masked language modelling and sentence prediction: ``roberta_<method>``.

With ``--segment-embeddings 2 --layer-norm-eps 1e-12`` it is BERT's encoder.
"""

from __future__ import annotations

import logging
from argparse import Namespace

from fairseq.models.roberta import RobertaModel
from torch import Tensor, nn

from fairseq_stochattn.models.backbone import Backbone, register_backbone
from fairseq_stochattn.models.config import join_configs
from fairseq_stochattn.models.embeddings import EmbeddingConfig, add_segments, set_layer_norm_eps
from fairseq_stochattn.models.layer_decay import LayerDecayConfig, mark_layers

logger = logging.getLogger(__name__)

# A checkpoint carries BERT's pooler, dense and tanh, as a classification head without classes:
# plain fairseq drops a head that its model lacks, so it can load such a checkpoint too.
POOLER = "pooler"


class HeadsFromPooler:
    """Mixin over RoBERTa: classification heads start from the pooler that a checkpoint carries.

    A head that the checkpoint has keeps its own weights; one of another shape starts fresh.
    """

    classification_heads: nn.ModuleDict

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        heads = f"{name}.classification_heads." if name else "classification_heads."
        pooler: dict[str, Tensor] = {}
        if POOLER not in self.classification_heads:  # else somebody has named a head so
            prefix = f"{heads}{POOLER}."
            carried = [key for key in state_dict if key.startswith(prefix)]
            pooler = {key.removeprefix(prefix): state_dict.pop(key) for key in carried}
        stored = {k.removeprefix(heads).split(".")[0] for k in state_dict if k.startswith(heads)}
        super().upgrade_state_dict_named(state_dict, name)
        for head in [head for head in self.classification_heads if head not in stored]:
            given = {f"{heads}{head}.{k}": v for k, v in pooler.items() if k.startswith("dense.")}
            if given and all(state_dict[k].shape == v.shape for k, v in given.items()):
                logger.info("the head %s starts from the checkpoint's pooler", head)
                state_dict.update(given)


def finish(model: nn.Module, config: Namespace) -> None:
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
