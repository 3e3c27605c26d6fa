"""``--criterion node_classification``: cross entropy over labelled nodes, with an L2 penalty.

    loss = − Σ log p(class of a node) + n·(l2/2)·Σ ‖weights‖²   for n labelled nodes

The penalty is that of graph attention networks (Veličković et al. 2018): without biases, and part
of the gradient that Adam scales, unlike fairseq's ``--weight-decay``. It is not part of the logged
loss. Logged: ``loss``, ``accuracy``.
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from ..compat import UsageError
from .token_tagging import TokenTaggingCriterion


@dataclass
class NodeClassificationConfig(FairseqDataclass):
    """The flags of the criterion."""

    l2: float = field(
        default=0.0005, metadata={"help": "weight of the L2 penalty on the weights of a GAT"}
    )


@register_criterion("node_classification", dataclass=NodeClassificationConfig)
class NodeClassificationCriterion(TokenTaggingCriterion):
    """− Σ log p(class | graph) over the nodes of a split, plus the L2 penalty in training."""

    def __init__(self, task: Any, l2: float = 0.0005) -> None:
        super().__init__(task)
        if not 0 <= l2 < float("inf"):
            raise UsageError(f"--l2 must not be negative, but is {l2}")
        self.l2 = l2

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        loss, sample_size, log = super().forward(model, sample, reduce)
        if model.training and self.l2 > 0:
            squares = sum(p.float().square().sum() for p in model.decayed_parameters())
            loss = loss + sample_size * self.l2 / 2 * squares
        return loss, sample_size, log
