"""Encoder-decoder Transformer: ``transformer_<method>`` and fairseq's presets of it."""

from fairseq.models.transformer import TransformerModel

from fairseq_stochattn.models.backbone import Backbone, register_backbone

register_backbone(
    Backbone(
        name="transformer",
        model=TransformerModel,
        sites=("encoder", "decoder", "cross"),
        owners=lambda model: (model.encoder, model.decoder),
    )
)
