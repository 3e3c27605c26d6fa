"""``--criterion freelb``: FreeLB (Zhu et al. 2020), see methods/freelb.py.

The perturbed objective is the task's own loss plus every loss of the attention. Logged: ``loss``
(the task loss under δ_0), ``adv_loss`` (the task loss under the last δ), ``delta_norm``,
``objective``.
"""

from __future__ import annotations

import math
from typing import Any

from fairseq.criterions import register_criterion
from torch import Tensor, nn

from ..methods.freelb import FreeLB, perturbed_passes
from ..models.method_flags import settings_flags, settings_from
from .attention_losses import AttentionLosses, wrapping_config


@register_criterion(
    "freelb", dataclass=wrapping_config("FreeLBCriterionConfig", settings_flags(FreeLB))
)
class FreeLBCriterion(AttentionLosses):
    """The mean objective over K adversarial perturbations of the word embeddings."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.freelb = settings_from(FreeLB, cfg)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not model.training:
            return super().forward(model, sample, reduce)
        steps = self.freelb.steps

        def run() -> tuple[Tensor, Tensor, Any, dict[str, Any]]:
            task_loss, sample_size, log = self.task_pass(model, sample, reduce)
            objective, _, log = self.with_named_losses(model, task_loss, sample_size, log)
            return task_loss, objective, sample_size, log

        passes, perturbation = perturbed_passes(self.freelb, model, run, lambda result: result[0])
        loss = sum(objective / steps for _, objective, _, _ in passes)
        logs = [log for *_, log in passes]
        last_loss, _, sample_size, _ = passes[-1]
        named = {key for key in logs[0] if key.startswith("attention/")}
        log = logs[0]
        log.update({key: sum(each[key] for each in logs) / steps for key in named})
        # In bits, like fairseq's own loss.
        log["attention/adv_loss"] = last_loss.detach().sum() / math.log(2)
        log["attention/delta_norm"] = perturbation.size(self.freelb.ascent.order) * sample_size
        log["objective"] = loss.detach().sum()
        return loss, sample_size, log
