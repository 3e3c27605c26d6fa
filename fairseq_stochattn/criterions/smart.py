"""``--criterion smart``: SMART (Jiang et al. 2020), see methods/smart.py.

The losses of the attention are taken from the unperturbed forward pass. Logged: ``smart``,
``smart_weight``, ``delta_norm``, ``objective``.
"""

from __future__ import annotations

from typing import Any

from fairseq.criterions import register_criterion
from torch import Tensor, nn

from ..core.divergences import squared_difference, symmetric_kl
from ..core.losses import NamedLoss, take_losses
from ..core.perturbation import replayed_randomness
from ..methods.smart import SMART, smoothness_loss
from ..models.method_flags import settings_flags, settings_from
from .attention_losses import AttentionLosses, wrapping_config
from .predictions import is_regression, record_outputs, target_logits


@register_criterion(
    "smart", dataclass=wrapping_config("SmartCriterionConfig", settings_flags(SMART))
)
class SmartCriterion(AttentionLosses):
    """Task loss + weight · change of the predictions under a small adversarial perturbation."""

    needs_logits = True

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.smart = settings_from(SMART, cfg)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not model.training:
            return super().forward(model, sample, reduce)
        distance = squared_difference if is_regression(self.task_criterion) else symmetric_kl
        # Created first, since drawing its seed changes the random state that all passes start from.
        perturbation = self.smart.perturbation()
        with replayed_randomness() as replay:
            with record_outputs(model) as outputs:
                loss, sample_size, log = self.task_pass(model, sample, reduce)
            clean = target_logits(self.task_criterion, sample, outputs)
            named = list(take_losses(model))

            def predict() -> Tensor:
                replay()
                with record_outputs(model) as outputs:
                    self.task_pass(model, sample, reduce)
                list(take_losses(model))  # dropped: they count once, in the unperturbed pass
                return target_logits(self.task_criterion, sample, outputs)

            smart = smoothness_loss(self.smart, model, clean, predict, distance, perturbation)
        named.append(("smart", NamedLoss(smart, self.smart.weight)))
        log["attention/delta_norm"] = perturbation.size(self.smart.ascent.order) * sample_size
        return self.with_losses(named, loss, sample_size, log)
