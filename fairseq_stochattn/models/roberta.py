"""RoBERTa for masked language modelling and sentence prediction: ``roberta_<method>``."""

from fairseq.models.roberta import RobertaModel

from fairseq_stochattn.models.backbone import Backbone, register_backbone

register_backbone(
    Backbone(
        name="roberta",
        model=RobertaModel,
        sites=("encoder",),
        owners=lambda model: (model.encoder.sentence_encoder,),
    )
)
