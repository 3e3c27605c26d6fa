"""The task's own criterion plus every named loss that the attention methods left behind.

``--criterion attention_losses --task-criterion label_smoothed_cross_entropy --label-smoothing 0.1``
The flags of the wrapped criterion keep their names. Criterions of single methods subclass this one.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor, nn

from fairseq_stochattn.attention.method import NamedLoss, collect_losses, collecting_losses
from fairseq_stochattn.criterions import electra, tagging  # noqa: F401  (registers what is wrapped)
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.config import flags_of, is_typed, join_configs

# The criterion a task is trained with when --task-criterion does not say; a special task stands
# before the one that it is a case of.
DEFAULTS = {
    "translation": "label_smoothed_cross_entropy",
    "language_modeling": "cross_entropy",
    "electra": "electra",
    "masked_lm": "masked_lm",
    "sentence_prediction": "sentence_prediction",
    "sentence_ranking": "sentence_ranking",
    "token_tagging": "token_tagging",
}
WRAPPABLE = (*dict.fromkeys(DEFAULTS.values()), "adaptive_loss")


@dataclass
class TaskCriterionConfig(FairseqDataclass):
    """Which criterion is wrapped."""

    task_criterion: str = field(
        default="auto",
        metadata={
            "help": "the task's own criterion, its flags keep their names: auto (by the task), "
            + ", ".join(WRAPPABLE)
        },
    )


def criterion_config(name: str) -> type[FairseqDataclass]:
    """The flags of a criterion; of one that fairseq has not typed, read off its parser."""
    return flags_of(CRITERION_REGISTRY[name], _nothing)


def _nothing(args: Namespace) -> None:
    """A criterion has no presets."""


def wrapping_config(name: str, *parts: type[FairseqDataclass]) -> type[FairseqDataclass]:
    """The configuration of a wrapping criterion: its own ``parts`` and all flags it passes on."""
    return join_configs(name, *parts, TaskCriterionConfig, *map(criterion_config, WRAPPABLE))


def task_criterion_name(chosen: str, task: Any) -> str:
    if chosen == "auto":
        for task_name, criterion in DEFAULTS.items():
            if isinstance(task, TASK_REGISTRY[task_name]):
                return criterion
        raise UsageError(
            f"--task-criterion: no default for {type(task).__name__}, "
            f"name one of {', '.join(WRAPPABLE)}"
        )
    if chosen not in WRAPPABLE:
        raise UsageError(
            f"--task-criterion: unknown criterion '{chosen}' (known: {', '.join(WRAPPABLE)})"
        )
    return chosen


def averaged_over_layers(
    losses: Iterable[tuple[str, NamedLoss]],
) -> Iterator[tuple[str, NamedLoss]]:
    """Of averages and measures with a count, one over all layers; the others as they are."""
    pooled: dict[str, NamedLoss] = {}
    for name, loss in losses:
        if loss.count is None or not (loss.mean or loss.weight is None):
            yield name, loss
        elif name in pooled:
            value, count = pooled[name].value + loss.value, pooled[name].count + loss.count
            pooled[name] = NamedLoss(value, loss.weight, mean=True, count=count)
        else:
            pooled[name] = loss
    for name, loss in pooled.items():
        yield name, NamedLoss(loss.value / loss.count.clamp(min=1), loss.weight, mean=True)


@register_criterion("attention_losses", dataclass=wrapping_config("AttentionLossesConfig"))
class AttentionLosses(FairseqCriterion):
    """task loss + Σ weight · named loss; every term is logged under its own name.

    ``loss`` (and what derives from it, such as ppl) stays the task's own, so that runs compare;
    ``objective`` is what is minimised. Named losses are logged per sample in their own unit.
    """

    wrapped_class: ClassVar[type[FairseqCriterion]]

    def __init__(self, task: Any, task_criterion: FairseqCriterion, cfg: Any) -> None:
        super().__init__(task)
        self.task_criterion = task_criterion
        self.cfg = cfg

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> AttentionLosses:
        name = task_criterion_name(cfg.task_criterion, task)
        wrapped_class = CRITERION_REGISTRY[name]
        flags = cfg
        if not is_typed(wrapped_class):
            # Such a criterion reads one flat namespace, the task's flags among them.
            own = {entry.name: getattr(cfg, entry.name) for entry in fields(criterion_config(name))}
            flags = Namespace(**{**vars(task.args), **own})
        # fairseq reduces metrics on the class, so the class must know what it wraps.
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
        """The task's own loss; what the attention leaves meanwhile waits to be collected."""
        with collecting_losses():
            return self.task_criterion(model, sample, reduce)

    def with_named_losses(
        self, model: nn.Module, loss: Tensor, sample_size: Any, log: dict[str, Any]
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """The result of a pass with every loss that it left."""
        extra, terms = self.named_losses(model, sample_size)
        if extra is not None:
            loss = loss + extra
            log["objective"] = loss.detach().sum()
        log.update(terms)
        return loss, sample_size, log

    def losses_of(self, model: nn.Module) -> Iterable[tuple[str, NamedLoss]]:
        """All losses of the forward just done; criterions with losses of their own add them."""
        return collect_losses(model)

    def reduce_loss(
        self, name: str, loss: NamedLoss, model: nn.Module, sample_size: Any
    ) -> tuple[Tensor, float | None]:
        """A loss on the scale of the task's sum, and its weight; criterions of methods override."""
        return loss.value * sample_size if loss.mean else loss.value, loss.weight

    def named_losses(
        self, model: nn.Module, sample_size: Any
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The weighted sum of all losses left, and each of them for the log, summed over layers."""
        extra: Tensor | None = None
        log: dict[str, Tensor] = {}
        for name, loss in averaged_over_layers(self.losses_of(model)):
            key = f"attention/{name}"
            term, weight = self.reduce_loss(name, loss, model, sample_size)
            log[key] = log.get(key, 0.0) + term.detach()
            if weight is None:
                continue
            log[f"{key}_weight"] = torch.as_tensor(weight * sample_size)
            # Also with weight 0, before a schedule starts: DistributedDataParallel waits for a
            # gradient of every parameter, those that only this loss reaches among them.
            extra = weight * term if extra is None else extra + weight * term
        return extra, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        cls.wrapped_class.reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        named = {key for log in logging_outputs for key in log if key.startswith("attention/")}
        for key in sorted(named):
            total = sum(log.get(key, 0) for log in logging_outputs)
            # fairseq prints six significant digits, and some terms are tiny.
            metrics.log_scalar(key.split("/", 1)[1], total / sample_size, sample_size, round=8)
        if any("objective" in log for log in logging_outputs):
            total = sum(log.get("objective", 0) for log in logging_outputs)
            metrics.log_scalar("objective", total / sample_size / math.log(2), sample_size, round=3)

    @classmethod
    def logging_outputs_can_be_summed(cls) -> bool:
        return cls.wrapped_class.logging_outputs_can_be_summed()
