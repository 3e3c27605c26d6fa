"""Transformer language model: ``transformer_lm_<method>`` and fairseq's GPT-like presets of it."""

from fairseq.models.transformer_lm import TransformerLanguageModel

from fairseq_stochattn.models.backbone import Backbone, register_backbone

register_backbone(
    Backbone(
        name="transformer_lm",
        model=TransformerLanguageModel,
        sites=("decoder",),
        owners=lambda model: (model.decoder,),
    )
)
