"""Encoder-decoder Transformer.

Registers ``transformer_<method>``, and a variant of each of fairseq's presets for every method.
"""

from fairseq.models.transformer import TransformerModel

from .backbone import Backbone, register_backbone

register_backbone(
    Backbone(
        name="transformer",
        model=TransformerModel,
        sites=("encoder", "decoder", "cross"),
        owners=lambda model: (model.encoder, model.decoder),
    )
)
