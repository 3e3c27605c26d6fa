"""LSTM encoder-decoder with attention.

Registers ``lstm_<method>`` and presets of each: ``lstm_<method>_iwslt_de_en`` is the translation
model of the BABN paper, ``lstm_<method>_luong_iwslt_de_en`` a larger one with fairseq's attention.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model_architecture
from fairseq.models.lstm import LSTMModel, base_architecture
from omegaconf import II
from torch import nn

from ..compat import UsageError
from .backbone import Backbone, register_backbone
from .config import set_defaults
from .lstm_attention import AdditiveAttentionLayer

SCORES = ("general", "additive")


@dataclass
class RecurrentConfig(FairseqDataclass):
    """Flags that fairseq's LSTM lacks."""

    lstm_attention: str = field(
        default="general",
        metadata={
            "help": "score of the attention: general, qᵀk (Luong et al. 2015), as in plain "
            "fairseq; or additive, vᵀ tanh(q + k) (Bahdanau et al. 2015), as in the BABN paper"
        },
    )
    lstm_attention_dim: int = field(
        default=512, metadata={"help": "dimension of queries and keys of additive attention"}
    )
    # fairseq's LSTM uses an adaptive softmax as output layer if the criterion is adaptive_loss.
    criterion: str = II("criterion._name")


class HasAdditiveAttention:
    """Mixin for fairseq's LSTM: gives the decoder additive attention if the flags say so."""

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> nn.Module:
        model = super().build_model(args, task)
        if args.lstm_attention not in SCORES:
            raise UsageError(
                f"--lstm-attention {args.lstm_attention}: must be {' or '.join(SCORES)}"
            )
        if args.lstm_attention == "additive" and model.decoder.attention is not None:
            if args.lstm_attention_dim < 1:
                raise UsageError(
                    f"--lstm-attention-dim {args.lstm_attention_dim}: must be positive"
                )
            model.decoder.attention = AdditiveAttentionLayer.replace(
                model.decoder.attention, args.lstm_attention_dim
            )
        return model


def iwslt_de_en(args: Any) -> None:
    """Set the sizes of the BABN paper's translation model (App. A, after Deng et al. 2018).

    The encoder is a two-layer bidirectional LSTM with 512 units per direction, the decoder a
    two-layer LSTM with 768 units; embeddings and additive attention have 512 dimensions, and
    dropout is 0.3.
    """
    set_defaults(args, lstm_attention="additive", lstm_attention_dim=512, decoder_embed_dim=512)
    lstm_luong_iwslt_de_en(args)


@register_model_architecture("lstm", "lstm_luong_iwslt_de_en")
def lstm_luong_iwslt_de_en(args: Any) -> None:
    """Set the same number of layers and units, but fairseq's attention and wider embeddings."""
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
        mixins=(HasAdditiveAttention,),
        extra_config=RecurrentConfig,
        # Not a preset of plain fairseq, which has no additive attention.
        presets={"iwslt_de_en": iwslt_de_en},
    )
)
