"""GraphWriter: text from knowledge graphs (Koncel-Kedziorski et al. 2019).

Registers ``graph_writer`` and ``graph_writer_<method>``, each with the presets ``_agenda`` (the
sizes of the paper) and ``_small`` (for a CPU). Used with ``--task graph_to_text``.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    FairseqEncoderDecoderModel,
    register_model,
    register_model_architecture,
)
from omegaconf import II

from .. import compat
from ..compat import UsageError, require_positive
from ..core.stack import build_stacks
from .backbone import Backbone, RefusesMismatch, register_backbone
from .config import complete, set_defaults
from .graph_text_decoder import GraphTextDecoder
from .graph_text_encoder import GraphTextEncoder
from .multihead_attention import StochasticMultiheadAttention


@dataclass
class GraphWriterConfig(FairseqDataclass):
    """The flags of the model; None is replaced by the preset."""

    encoder_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width of the whole model, default: 256"}
    )
    encoder_ffn_embed_dim: Optional[int] = field(
        default=None,
        metadata={"help": "hidden units of the graph layers, default: four times the width"},
    )
    encoder_layers: Optional[int] = field(
        default=None, metadata={"help": "number of graph layers, default: 6"}
    )
    encoder_attention_heads: Optional[int] = field(
        default=None, metadata={"help": "heads of the graph layers, default: 4"}
    )
    decoder_attention_heads: Optional[int] = field(
        default=None, metadata={"help": "heads of the decoder's attention, default: 4"}
    )
    encoder_normalize_before: bool = field(
        default=False, metadata={"help": "apply layer norm before each block of the graph layers"}
    )
    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = field(
        default="relu", metadata={"help": "activation function of the graph layers"}
    )
    dropout: Optional[float] = field(default=None, metadata={"help": "dropout, default: 0.1"})
    attention_dropout: Optional[float] = field(
        default=None, metadata={"help": "dropout of the attention weights, default: 0"}
    )
    activation_dropout: float = field(
        default=0.0, metadata={"help": "dropout after the activation in the graph layers"}
    )
    max_target_positions: int = II("task.max_target_positions")


@register_model("graph_writer", dataclass=GraphWriterConfig)
class GraphWriterModel(RefusesMismatch, FairseqEncoderDecoderModel):
    """Writes a text about a graph and, in some corpora, a title."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "GraphWriterModel":
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or "graph_writer"
        args = complete(cfg, GraphWriterConfig, ARCH_CONFIG_REGISTRY[arch], typed=True)
        if not hasattr(task, "relation_dictionary"):
            raise UsageError("--arch graph_writer reads graphs: use --task graph_to_text")
        set_defaults(args, max_target_positions=task.cfg.max_target_positions)
        check(args)
        encoder = GraphTextEncoder(
            args, task.source_dictionary, task.relation_dictionary, task.has_titles
        )
        decoder = GraphTextDecoder(args, task.target_dictionary, task.first_entity)
        use_masks_of_graphs(encoder)
        return cls(encoder, decoder)

    def forward(self, prev_output_tokens: Any, **graphs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the log-probabilities (B, T, V + K); ``graphs`` are the encoder's arguments."""
        return self.decoder(prev_output_tokens, encoder_out=self.encoder(**graphs))


def use_masks_of_graphs(encoder: GraphTextEncoder) -> None:
    """Replace fairseq's attention by ours, without a method: fairseq's has one mask per batch."""
    compat.use_own_attention_in_eval(encoder.layers)
    attentions = [StochasticMultiheadAttention.adopt(layer.self_attn) for layer in encoder.layers]
    build_stacks({}, {"encoder": attentions})


def check(args: Namespace) -> None:
    """Exit if a size is not positive, or the heads do not divide the width."""
    names = ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers")
    require_positive(args, *names, "encoder_attention_heads", "decoder_attention_heads")
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        heads, flag = getattr(args, name), name.replace("_", "-")
        if args.encoder_embed_dim % heads:
            raise UsageError(
                f"--{flag} {heads}: must divide --encoder-embed-dim {args.encoder_embed_dim}"
            )
    if args.encoder_embed_dim % 2:
        raise UsageError(f"--encoder-embed-dim {args.encoder_embed_dim}: must be even")


def base(args: Any) -> None:
    """Set the sizes that the flags do not set."""
    set_defaults(args, encoder_embed_dim=256)
    set_defaults(
        args,
        encoder_ffn_embed_dim=4 * args.encoder_embed_dim,
        encoder_layers=6,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        dropout=0.1,
        attention_dropout=0.0,
    )


ARCH_CONFIG_REGISTRY["graph_writer"] = base


@register_model_architecture("graph_writer", "graph_writer_agenda")
def agenda(args: Any) -> None:
    """Set the sizes of the paper: 500 dimensions, 6 layers, 4 heads, dropout 0.3 of attention."""
    set_defaults(args, encoder_embed_dim=500, attention_dropout=0.3)
    base(args)


@register_model_architecture("graph_writer", "graph_writer_small")
def small(args: Any) -> None:
    """Set sizes that train on one CPU core: 128 dimensions, 3 layers."""
    set_defaults(args, encoder_embed_dim=128, encoder_ffn_embed_dim=256, encoder_layers=3)
    base(args)


register_backbone(
    Backbone(
        name="graph_writer",
        model=GraphWriterModel,
        sites=("encoder", "cross"),
        owners=lambda model: (model.encoder, model.decoder),
        # Nodes have no order that positions could mean something in.
        defaults={"babn_upward": "heads"},
    )
)
