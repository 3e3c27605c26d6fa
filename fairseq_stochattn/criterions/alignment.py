"""``--criterion alignment``: the objective of alignment attention (Zhang et al. 2021, Eq. 1).

The objective is the task's own loss plus w(t) times the alignment loss. The alignment loss carries
its own weight and schedule (``--alignment-weight``, ``-start``, ``-warmup``); this criterion only
adds a check that the model has alignment attention. Logged: ``align`` (averaged over sentences,
heads and layers), ``align_weight``, ``objective``.
"""

from __future__ import annotations

from typing import Any

from fairseq.criterions import register_criterion
from torch import Tensor, nn

from ..compat import UsageError
from ..methods.alignment import AlignmentAttention
from .attention_losses import AttentionLosses, wrapping_config


@register_criterion("alignment", dataclass=wrapping_config("AlignmentCriterionConfig"))
class AlignmentCriterion(AttentionLosses):
    """Task loss + w·L_align, for models with alignment attention."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not any(isinstance(module, AlignmentAttention) for module in model.modules()):
            raise UsageError(
                "--criterion alignment: this model aligns nothing; add --alignment gan, ot or ct"
            )
        return super().forward(model, sample, reduce)
