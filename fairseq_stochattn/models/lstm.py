"""LSTM encoder-decoder with attention.

Registers ``lstm_<method>``, and a variant of each of fairseq's presets for every method.
"""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model_architecture
from fairseq.models.lstm import LSTMModel, base_architecture
from omegaconf import II

from .backbone import Backbone, register_backbone
from .config import set_defaults


@dataclass
class RecurrentConfig(FairseqDataclass):
    """The name of the criterion.

    fairseq's LSTM reads it, because with ``adaptive_loss`` it uses an adaptive softmax as output
    layer.
    """

    criterion: str = II("criterion._name")


@register_model_architecture("lstm", "lstm_iwslt_de_en")
def lstm_iwslt_de_en(args: Any) -> None:
    """Set the sizes of the BABN paper's translation model (App. A).

    The encoder is a two-layer bidirectional LSTM with 512 units, the decoder is a two-layer LSTM
    with 768 units, and dropout is 0.3. The arch with BABN attention is ``lstm_babn_iwslt_de_en``.
    """
    set_defaults(
        args,
        encoder_embed_dim=512,
        encoder_hidden_size=512,
        encoder_layers=2,
        encoder_bidirectional=True,
        decoder_embed_dim=768,
        decoder_hidden_size=768,
        decoder_out_embed_dim=768,
        decoder_layers=2,
        dropout=0.3,
    )
    base_architecture(args)


register_backbone(
    Backbone(
        name="lstm",
        model=LSTMModel,
        sites=("cross",),
        owners=lambda model: (model.decoder,),
        extra_config=RecurrentConfig,
    )
)
