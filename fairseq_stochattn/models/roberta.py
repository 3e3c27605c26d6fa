"""RoBERTa for masked language modelling and sentence prediction: ``roberta_<method>``.

With ``--segment-embeddings 2`` it is BERT's encoder.
"""

from argparse import Namespace

from fairseq.models.roberta import RobertaModel
from torch import nn

from fairseq_stochattn.models.backbone import Backbone, register_backbone
from fairseq_stochattn.models.config import join_configs
from fairseq_stochattn.models.embeddings import EmbeddingConfig, add_segments
from fairseq_stochattn.models.layer_decay import LayerDecayConfig, mark_layers


def finish(model: nn.Module, config: Namespace) -> None:
    add_segments(model.encoder.sentence_encoder, config)
    mark_layers(model.encoder.sentence_encoder, config)


register_backbone(
    Backbone(
        name="roberta",
        model=RobertaModel,
        sites=("encoder",),
        owners=lambda model: (model.encoder.sentence_encoder,),
        extra_config=join_configs("EncoderConfig", EmbeddingConfig, LayerDecayConfig),
        finish=finish,
    )
)
