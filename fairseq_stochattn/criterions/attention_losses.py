"""``--criterion attention_losses``: the task's own criterion plus all losses of the attention.

``--criterion attention_losses --task-criterion label_smoothed_cross_entropy --label-smoothing 0.1``
The flags of the wrapped criterion keep their names. Every loss of the attention carries its own
weight, schedule and reduction (core/losses.py), so the objective of a model is the same under every
criterion of this package. The criterions of single methods are subclasses of this one.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from ..compat import exit_on_bad_input
from ..core.losses import NamedLoss, collecting_losses, take_losses, weighted_sum
from ..core.memory import keep_freed_memory
from ..core.meters import MeterSettings, measuring
from ..core.method import AttentionMethod
from ..core.settings import Settings, flag_name
from ..methods.asa import ASA
from ..methods.babn.prior import KLSettings
from ..models.config import flags_of, is_typed, join_configs, without_defaults
from ..models.method_flags import settings_flags, settings_from
from ..tasks.kinds import WRAPPABLE, criterion_name
from . import (  # noqa: F401  (registers the criterions that are wrapped)
    electra,
    node_classification,
    question_answering,
    token_tagging,
    vqa,
)
from .vocabulary import criterion_pass


@dataclass
class TaskCriterionConfig(FairseqDataclass):
    """The flag that names the wrapped criterion."""

    task_criterion: str = field(
        default="auto",
        metadata={
            "help": "the task's own criterion, whose flags keep their names: auto (by the task), "
            + ", ".join(WRAPPABLE)
        },
    )


# Settings of methods that were flags of criterions before each loss carried its own weight. A
# criterion still accepts them (old checkpoints, hydra configurations) and passes them to the model.
PASSED_ON: dict[type[Settings], tuple[str, ...]] = {
    KLSettings: tuple(entry.name for entry in fields(KLSettings)),
    ASA: ("tau",),
}


def criterion_config(name: str) -> type[FairseqDataclass]:
    """The flags of a criterion as a dataclass; read from its argument parser if it has none."""
    return flags_of(CRITERION_REGISTRY[name], _no_preset)


def _no_preset(args: Namespace) -> None:
    """Does nothing: criterions have no presets, unlike archs."""


def wrapping_config(name: str, *parts: type[FairseqDataclass]) -> type[FairseqDataclass]:
    """The configuration of a wrapping criterion: its own ``parts`` and all flags it passes on."""
    passed_on = (
        without_defaults(settings_flags(settings, *names)) for settings, names in PASSED_ON.items()
    )
    wrapped = map(criterion_config, WRAPPABLE)
    own = (TaskCriterionConfig, settings_flags(MeterSettings))
    return join_configs(name, *parts, *own, *passed_on, *wrapped)


@register_criterion("attention_losses", dataclass=wrapping_config("AttentionLossesConfig"))
class AttentionLosses(FairseqCriterion):
    """Task loss + Σ weight · named loss; every term is logged under its own name.

    ``loss``, and what fairseq derives from it such as ppl, stays the task's own, so that runs can
    be compared; ``objective`` is what is minimised. Named losses are logged per sample.
    """

    wrapped_class: ClassVar[type[FairseqCriterion]]
    needs_logits: ClassVar[bool] = False  # reads the model's output, not only the task's loss

    def __init__(self, task: Any, task_criterion: FairseqCriterion, cfg: Any) -> None:
        super().__init__(task)
        keep_freed_memory()  # a fifth of a small model's step on the CPU
        self.task_criterion = task_criterion
        self.cfg = cfg
        self.meters = settings_from(MeterSettings, cfg)
        self.updates_begun = 0  # in this process
        check_passed_on(cfg)
        settings_from(KLSettings, cfg)  # refuses bad values before training starts

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> AttentionLosses:
        name = criterion_name(cfg.task_criterion, task)
        wrapped_class = CRITERION_REGISTRY[name]
        flags = cfg
        if not is_typed(wrapped_class):
            # Such a criterion reads its flags and the task's from one flat namespace.
            own = {entry.name: getattr(cfg, entry.name) for entry in fields(criterion_config(name))}
            flags = Namespace(**{**vars(task.args), **own})
        # fairseq calls reduce_metrics on the class, which therefore stores the wrapped class.
        bound = type(cls.__name__, (cls,), {"wrapped_class": wrapped_class})
        return bound(task, wrapped_class.build_criterion(flags, task), cfg)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        loss, sample_size, log = self.task_pass(model, sample, reduce)
        return self.with_named_losses(model, loss, sample_size, log)

    def task_pass(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Returns the task's own result; the losses of the attention stay in the model."""
        self.apply_overrides(model)
        with collecting_losses(), measuring(self.meters_due(model)):
            return self.task_loss(model, sample, reduce)

    def task_loss(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """What the task's criterion returns."""
        if self.needs_logits:
            return self.task_criterion(model, sample, reduce)
        return criterion_pass(self.task_criterion, model, sample, reduce)

    def train(self, mode: bool = True) -> AttentionLosses:
        """Called by fairseq once per update, before the first batch."""
        self.updates_begun += mode
        return super().train(mode)

    def meters_due(self, model: nn.Module) -> bool:
        """Whether to measure now: in validation, and in some training updates, all their batches.

        The update is counted here, since plain models do not know it.
        """
        return not model.training or self.meters.due(max(0, self.updates_begun - 1))

    def with_named_losses(
        self, model: nn.Module, loss: Tensor, sample_size: Any, log: dict[str, Any]
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Add every loss that the forward pass left in the model."""
        return self.with_losses(self.losses_of(model), loss, sample_size, log)

    def with_losses(
        self,
        losses: Iterable[tuple[str, NamedLoss]],
        loss: Tensor,
        sample_size: Any,
        log: dict[str, Any],
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Add these losses to the task's loss and to its log."""
        extra, terms = weighted_sum(losses, sample_size)
        if extra is not None:
            loss = loss + extra
            log["objective"] = loss.detach().sum()
        log.update({f"attention/{name}": value for name, value in terms.items()})
        return loss, sample_size, log

    def losses_of(self, model: nn.Module) -> Iterable[tuple[str, NamedLoss]]:
        """All losses of the last forward pass; a subclass may add its own."""
        return take_losses(model)

    def overrides(self) -> dict[str, Any]:
        """The flags of this criterion that are settings of methods; None where not given."""
        flags = (flag for settings in PASSED_ON for flag in passed_on_flags(settings))
        return {flag: getattr(self.cfg, flag, None) for flag in flags}

    def apply_overrides(self, model: nn.Module) -> None:
        """Replace the settings of the model's methods where this criterion's flags differ."""
        given = {name: value for name, value in self.overrides().items() if value is not None}
        if not given:
            return
        for method in model.modules():
            if not isinstance(method, AttentionMethod):
                continue
            names = {flag_name(type(method.settings), x): x.name for x in fields(method.settings)}
            changed = {
                names[flag]: getattr(value, "value", value)
                for flag, value in given.items()
                if flag in names
            }
            if any(getattr(method.settings, name) != value for name, value in changed.items()):
                with exit_on_bad_input():
                    method.settings = replace(method.settings, **changed)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        cls.wrapped_class.reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        named = {key for log in logging_outputs for key in log if key.startswith("attention/")}
        for key in sorted(named):
            total = sum(log.get(key, 0) for log in logging_outputs)
            # Eight digits, since some terms are tiny; fairseq prints six significant ones.
            metrics.log_scalar(key.split("/", 1)[1], total / sample_size, sample_size, round=8)
        if any("objective" in log for log in logging_outputs):
            total = sum(log.get("objective", 0) for log in logging_outputs)
            metrics.log_scalar("objective", total / sample_size / math.log(2), sample_size, round=3)

    @classmethod
    def logging_outputs_can_be_summed(cls) -> bool:
        return cls.wrapped_class.logging_outputs_can_be_summed()


def passed_on_flags(settings: type[Settings]) -> dict[str, str]:
    """Flag → setting, for those settings of a method that criterions accept as flags."""
    names = PASSED_ON[settings]
    return {flag_name(settings, x): x.name for x in fields(settings) if x.name in names}


def check_passed_on(cfg: Any) -> None:
    """Exit if a flag that is passed on has a bad value, even if no method uses it."""
    for settings in PASSED_ON:
        values = {name: getattr(cfg, x, None) for x, name in passed_on_flags(settings).items()}
        given = {name: getattr(x, "value", x) for name, x in values.items() if x is not None}
        with exit_on_bad_input():
            settings(**given)
