"""LSTM encoder-decoder with attention: ``lstm_<method>`` and fairseq's presets of it."""

from dataclasses import dataclass

from fairseq.dataclass import FairseqDataclass
from fairseq.models.lstm import LSTMModel
from omegaconf import II

from fairseq_stochattn.models.backbone import Backbone, register_backbone


@dataclass
class RecurrentConfig(FairseqDataclass):
    """fairseq's LSTM asks which criterion is used: adaptive_loss needs another output layer."""

    criterion: str = II("criterion._name")


register_backbone(
    Backbone(
        name="lstm",
        model=LSTMModel,
        sites=("cross",),
        owners=lambda model: (model.decoder,),
        extra_config=RecurrentConfig,
    )
)
