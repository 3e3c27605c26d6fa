"""Alignment attention's objective, Eq. 1: the task's own loss plus w(t) times the alignment.

``--criterion alignment --alignment ct --task-criterion label_smoothed_cross_entropy``
The weight w(t) belongs to the method (``--alignment-weight``, ``-start``, ``-warmup``), so it holds
under any of our criterions: with ``--attention babn`` use ``elbo``, which treats babn's KL too.
Logged: ``align``, averaged over samples, heads and layers, ``align_weight``, ``objective``.
"""

from __future__ import annotations

from typing import Any

from fairseq.criterions import register_criterion
from torch import Tensor, nn

from fairseq_stochattn.attention.method import AttentionMethod
from fairseq_stochattn.criterions.attention_losses import AttentionLosses, wrapping_config
from fairseq_stochattn.errors import UsageError


@register_criterion("alignment", dataclass=wrapping_config("AlignmentCriterionConfig"))
class AlignmentCriterion(AttentionLosses):
    """The task's loss plus w·L_align, for models that align."""

    def named_losses(
        self, model: nn.Module, sample_size: Any
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        extra, log = super().named_losses(model, sample_size)
        if "attention/align" not in log and not _aligns(model):
            raise UsageError(
                "--criterion alignment: this model aligns nothing; add --alignment gan, ot or ct"
            )
        return extra, log


def _aligns(model: nn.Module) -> bool:
    """LayerDrop may have left out every layer of one batch: that is no mistake."""
    methods = (m for m in model.modules() if isinstance(m, AttentionMethod))
    return any(method.name == "alignment" for method in methods)
