"""Graph attention networks, ``--arch gat`` and ``gat_<method>`` (Veličković et al. 2018).

Used with ``--task node_classification``. The defaults are those of the paper on Cora and Citeseer:
two layers, 8 heads of 8 features, then one head; dropout 0.6. The graph belongs to the task's data:
a checkpoint contains only weights.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, BaseFairseqModel, register_model
from torch import Tensor, nn

from ..compat import UsageError, require_positive
from ..core.graph_network import GraphEncoder
from .backbone import Backbone, RefusesMismatch, register_backbone
from .config import complete


@dataclass
class GATConfig(FairseqDataclass):
    """The flags of the model."""

    gat_layers: int = field(default=2, metadata={"help": "number of layers"})
    gat_hidden: int = field(
        default=8, metadata={"help": "features per head in all layers but the last"}
    )
    gat_heads: int = field(default=8, metadata={"help": "heads in all layers but the last"})
    gat_output_heads: int = field(
        default=1, metadata={"help": "heads in the last layer, whose outputs are averaged"}
    )
    dropout: float = field(
        default=0.6, metadata={"help": "dropout of the input of every layer, and of the values"}
    )
    attention_dropout: float = field(
        default=0.6, metadata={"help": "dropout of the attention weights"}
    )


@register_model("gat", dataclass=GATConfig)
class GATModel(RefusesMismatch, BaseFairseqModel):
    """Predicts the class of every node of the graph that the task has read."""

    def __init__(self, encoder: GraphEncoder, task: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.graph, self.features = task.graph.graph, task.graph.features

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "GATModel":
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or "gat"
        args = complete(cfg, GATConfig, ARCH_CONFIG_REGISTRY[arch], typed=True)
        require_positive(args, "gat_layers", "gat_hidden", "gat_heads", "gat_output_heads")
        if not hasattr(task, "graph"):
            raise UsageError("--arch gat needs a graph: use --task node_classification")
        heads = [args.gat_heads] * (args.gat_layers - 1) + [args.gat_output_heads]
        encoder = GraphEncoder(
            task.graph.features.width,
            args.gat_hidden,
            task.graph.num_classes,
            heads,
            args.dropout,
            args.attention_dropout,
        )
        return cls(encoder, task)

    def forward(self, nodes: Tensor, **unused: Any) -> tuple[Tensor, dict]:
        """Return the logits (B, n, classes) of nodes (B, n).

        Every row has a forward pass of its own, and its own sample of a random attention.
        """
        logits = [self.encoder(self.features, self.graph)[row] for row in nodes]
        return torch.stack(logits), {}

    def decayed_parameters(self) -> list[nn.Parameter]:
        """The parameters of the L2 penalty: all but biases and those of attention methods."""
        return [
            parameter
            for layer in self.encoder.layers
            for parameter in (layer.weight, layer.a_q, layer.a_k)
        ]

    def max_positions(self) -> int:
        return self.graph.num_nodes

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: Any = None
    ) -> Tensor:
        logits = net_output[0].float()
        return logits.log_softmax(dim=-1) if log_probs else logits.softmax(dim=-1)


def _no_preset(args: Namespace) -> None:
    """The defaults of the flags are those of the paper."""


ARCH_CONFIG_REGISTRY["gat"] = _no_preset

register_backbone(
    Backbone(
        name="gat",
        model=GATModel,
        sites=("encoder",),
        owners=lambda model: (model.encoder,),
        graphs=True,
        defaults={"babn_upward": "heads"},
    )
)
