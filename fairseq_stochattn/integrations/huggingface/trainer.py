"""A mixin for transformers' ``Trainer``: adds the methods' losses, schedules, logs and samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.divergences import categorical_kl
from ...core.losses import HasLosses, take_losses, weighted_sum
from ...core.masking import MaskingMethod
from ...core.meters import MeterSettings, measuring
from ...core.method import AttentionMethod
from ...core.paired_batch import clean_half, paired_batch, twice
from ...methods.repulsive import Repulsive
from ...uncertainty.sampling import is_random, sample

IGNORED = -100  # label that the losses of transformers leave out
SPANS = ("start_positions", "end_positions")  # the labels of question answering
BEYOND = 2**30  # position that the losses of transformers leave out


class TrainerMixin:
    """``class MyTrainer(sa.TrainerMixin, transformers.Trainer)`` trains a converted model.

    Set as attributes of the class or of the trainer: ``eval_samples``, number of attention samples
    in evaluation (0: the mean attention); ``repulsive``, the settings of ``sa.Repulsive``, which
    then wraps the optimizer (``{}``: its defaults); ``meter_interval``, updates between meters.
    """

    eval_samples: int = 0
    repulsive: dict[str, Any] | None = None
    meter_interval: int = 100

    def __init__(self, model: nn.Module | None = None, args: Any = None, **kwargs: Any) -> None:
        if args is not None and args.ddp_find_unused_parameters is None:
            # DDP would count parameters as unused that only the methods' losses reach, because
            # the output of the model does not depend on them. Trainer reads this when it is built.
            args.ddp_find_unused_parameters = False
        super().__init__(model, args, **kwargs)
        self._named: dict[str, tuple[Tensor, int]] = {}

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """The optimizer of ``Trainer``, wrapped in ``sa.Repulsive`` if ``repulsive`` is set."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.repulsive is not None and not isinstance(optimizer, Repulsive):
            settings = {"seed": self.args.seed, **self.repulsive}
            self.optimizer = optimizer = Repulsive(optimizer, self.model, **settings)
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of ``Trainer`` plus the losses of the methods (in training)."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        step = self.state.global_step
        methods = [m for m in model.modules() if isinstance(m, AttentionMethod)]
        for method in methods:
            method.set_num_updates(step)
        masks = [m for m in methods if isinstance(m, MaskingMethod)]
        with measuring(MeterSettings(interval=self.meter_interval).due(step)):
            if masks:
                loss, outputs, extra = self._paired_loss(model, inputs, num_items_in_batch, masks)
            else:
                loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
                extra = 0.0
        targets = _targets(inputs)
        total, log = weighted_sum(take_losses(model), targets)
        for name, value in log.items():
            self._note(name, value / targets)
        if total is not None:
            extra = extra + total / targets
        if num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            # Trainer then does not divide by the number of accumulated batches.
            extra = extra / self.current_gradient_accumulation_steps
        loss = loss + extra
        return (loss, outputs) if return_outputs else loss

    def _paired_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items: Tensor | int | None,
        masks: list[MaskingMethod],
    ) -> tuple[Tensor, Any, Tensor]:
        """The loss of the clean half of a paired batch, the outputs, and α times the divergence."""
        paired = twice(dict(inputs))
        if "labels" not in inputs:
            return self._paired_spans(model, paired, num_items, masks)
        labels: Tensor = inputs["labels"]
        regression = labels.is_floating_point()
        if not regression:
            paired["labels"] = torch.cat([labels, torch.full_like(labels, IGNORED)])
        with paired_batch():
            loss, outputs = super().compute_loss(model, paired, True, num_items)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
        clean, adversarial = clean_half(logits), logits[len(labels) :]
        if regression:
            loss = nn.functional.mse_loss(clean.squeeze(-1), labels)
            divergence = (clean.detach() - adversarial).square().mean()
        else:
            divergence = categorical_kl(clean, adversarial)  # (B) or (B, T)
            if divergence.shape == labels.shape and divergence.dim() == 2:
                wanted = labels != IGNORED
                divergence = (divergence * wanted).sum() / wanted.sum().clamp(min=1)
            else:
                divergence = divergence.mean()
        weight = max(getattr(method.settings, "weight", 1.0) for method in masks)
        self._note("divergence", divergence)
        return loss, outputs, weight * divergence

    def _paired_spans(
        self,
        model: nn.Module,
        paired: dict[str, Any],
        num_items: Tensor | int | None,
        masks: list[MaskingMethod],
    ) -> tuple[Tensor, Any, Tensor]:
        """The same for question answering, whose predictions are the start and the end."""
        for name in SPANS:
            half = clean_half(paired[name])
            # The losses of transformers leave out positions beyond the end of the row.
            paired[name] = torch.cat([half, torch.full_like(half, BEYOND)])
        with paired_batch():
            loss, outputs = super().compute_loss(model, paired, True, num_items)
        logits = outputs["start_logits"], outputs["end_logits"]
        kl = [categorical_kl(*x.chunk(2)).mean() for x in logits]
        weight = max(getattr(method.settings, "weight", 1.0) for method in masks)
        divergence = (kl[0] + kl[1]) / 2
        self._note("divergence", divergence)
        return loss, outputs, weight * divergence

    def _note(self, name: str, value: Tensor) -> None:
        """Remember a number for the next log, without reading it from the device."""
        total, count = self._named.get(name, (0.0, 0))
        self._named[name] = total + value.detach(), count + 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Also log every loss and meter of the methods, averaged since the last log."""
        if "loss" in logs:
            logs = {**logs, **{name: float(x) / n for name, (x, n) in self._named.items()}}
            self._named.clear()
        super().log(logs, *args, **kwargs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Tensor | None]:
        """As that of ``Trainer``; with ``eval_samples``, logits are log mean probabilities."""
        found = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        for module in model.modules():
            if isinstance(module, HasLosses):
                module.losses = {}
        if prediction_loss_only or not self.eval_samples or not is_random(model):
            return found
        if not isinstance(found[1], Tensor):  # several outputs, such as starts and ends of answers
            return found
        inputs = {k: x for k, x in self._prepare_inputs(inputs).items() if k != "labels"}
        if found[1].size(-1) == 1:  # regression
            return found[0], sample(model, self.eval_samples, **inputs).mean, found[2]
        mean = sample(model, self.eval_samples, **inputs).probabilities.mean(dim=0)
        return found[0], mean.clamp(min=1e-30).log(), found[2]


def _targets(inputs: dict[str, Any]) -> Tensor | int:
    """The number of targets that the loss averages over."""
    if all(name in inputs for name in SPANS):
        return 2 * len(inputs[SPANS[0]])
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor):
        return 1
    return labels.numel() if labels.dim() < 2 else (labels != IGNORED).sum().clamp(min=1)
