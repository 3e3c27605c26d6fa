"""``--criterion smart``: SMART (Jiang et al. 2020), see methods/smart.py.

The losses of the attention are taken from the unperturbed forward pass. The averaged copy of the
model that the Bregman term needs belongs to this criterion, so checkpoints store it as criterion
state, which only training loads. Logged: ``smart``, ``smart_weight``, ``bregman``,
``bregman_weight``, ``delta_norm``, ``objective``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from fairseq.criterions import register_criterion
from torch import Tensor, nn

from ..compat import UsageError, loss_scale, took_step
from ..core.divergences import squared_difference, symmetric_kl
from ..core.losses import NamedLoss, take_losses
from ..core.model_average import ModelAverage
from ..core.perturbation import replayed_randomness
from ..methods.smart import SMART, smoothness_loss
from ..models.method_flags import settings_flags, settings_from
from .attention_losses import AttentionLosses, wrapping_config
from .predictions import is_regression, record_outputs, target_logits

logger = logging.getLogger(__name__)


@register_criterion(
    "smart", dataclass=wrapping_config("SmartCriterionConfig", settings_flags(SMART))
)
class SmartCriterion(AttentionLosses):
    """Task loss + weight · change of the predictions under a small adversarial perturbation."""

    needs_logits = True

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.smart = settings_from(SMART, cfg)
        self.average: ModelAverage | None = None
        self.planned_updates = 0

    def attach(self, model: nn.Module, config: Any) -> None:
        """Create the averaged copy of the model; ``config`` is that of the whole run.

        Called once by the Trainer, before the model is loaded from a checkpoint.
        """
        if not self.smart.bregman_weight:
            return
        if config.distributed_training.ddp_backend == "fully_sharded":
            raise UsageError(
                "--smart-bregman-weight needs a whole copy of the model on every rank, which "
                "--ddp-backend fully_sharded does not have; use pytorch_ddp"
            )
        self.average = ModelAverage(model)
        self.planned_updates = config.optimization.max_update
        self.task.optimizer_step = self._wrap_optimizer_step(self.task.optimizer_step)

    def load_state_dict(self, state: dict[str, Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Load the average, or start a new one if the checkpoint has none for this model."""
        own, state = self.state_dict(), state or {}
        if own.keys() == state.keys() and all(own[x].shape == state[x].shape for x in own):
            return super().load_state_dict(state, *args, **kwargs)
        logger.info("the checkpoint has no average for --smart-bregman-weight: starting anew")

    def _wrap_optimizer_step(self, optimizer_step: Callable) -> Callable:
        """Move the average after every step that changed the parameters."""

        @wraps(optimizer_step)
        def step(optimizer: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
            scale = loss_scale(optimizer)
            optimizer_step(optimizer, model, *args, **kwargs)
            if took_step(optimizer, scale):
                update = int(self.average.calls)  # the first call was before the first update
                momentum = self.smart.momentum_at(update, self.planned_updates)
                self.average.follow(unwrapped(model), momentum)

        return step

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
            if self.smart.bregman_weight:
                replay()
                earlier = self.earlier_logits(model, sample, reduce)
                named.append(
                    ("bregman", NamedLoss(distance(earlier, clean), self.smart.bregman_weight))
                )
        log["attention/delta_norm"] = perturbation.size(self.smart.ascent.order) * sample_size
        return self.with_losses(named, loss, sample_size, log)

    @torch.no_grad()
    def earlier_logits(self, model: nn.Module, sample: dict[str, Any], reduce: bool) -> Tensor:
        """The predictions f(X; θ̃) of the averaged copy, without a gradient."""
        if self.average is None:
            raise UsageError("--smart-bregman-weight can be used only within fairseq's Trainer")
        if not self.average.started:
            self.average.follow(unwrapped(model), 0.0)
        earlier = self.average.model.train(model.training)
        earlier.set_num_updates(int(self.average.calls) - 1)
        with record_outputs(earlier) as outputs:
            self.task_pass(earlier, sample, reduce)
        list(take_losses(earlier))
        return target_logits(self.task_criterion, sample, outputs)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside the wrappers for several ranks."""
    while hasattr(model, "module"):
        model = model.module
    return model
