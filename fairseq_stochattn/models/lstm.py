"""LSTM encoder-decoder with attention: ``lstm_<method>`` and fairseq's presets of it."""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model_architecture
from fairseq.models.lstm import LSTMModel, base_architecture
from omegaconf import II

from fairseq_stochattn.models.backbone import Backbone, register_backbone
from fairseq_stochattn.models.config import set_defaults


@dataclass
class RecurrentConfig(FairseqDataclass):
    """fairseq's LSTM asks which criterion is used: adaptive_loss needs another output layer."""

    criterion: str = II("criterion._name")


@register_model_architecture("lstm", "lstm_iwslt_de_en")
def lstm_iwslt_de_en(args: Any) -> None:
    """The model of the BABN paper's translation (App. A), and so ``lstm_babn_iwslt_de_en``.

    A two-layer bidirectional LSTM with 512 units, a two-layer LSTM with 768, dropout 0.3.
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
