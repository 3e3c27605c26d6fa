"""Transformer language model.

Registers ``transformer_lm_<method>``, and a variant of each of fairseq's presets for every method.
"""

from fairseq.models.transformer_lm import TransformerLanguageModel

from .backbone import Backbone, register_backbone

register_backbone(
    Backbone(
        name="transformer_lm",
        model=TransformerLanguageModel,
        sites=("decoder",),
        owners=lambda model: (model.decoder,),
    )
)
