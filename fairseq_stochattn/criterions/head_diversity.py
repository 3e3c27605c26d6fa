"""``--criterion head_diversity``: the task's own loss plus a penalty on similar heads.

Example: ``--criterion head_diversity --diversity disagreement --diversity-weight 1``.

The penalties are in methods/head_diversity.py. They are averaged over pairs of heads, non-padding
tokens (sentences, if a head attends once per sentence) and layers. Logged: the penalty under its
name, ``<name>_weight``, ``objective``, ``dist`` with ``--log-dist``, and every ``--meter-interval``
updates the meters of methods/repulsive/meter.py, on average and per layer. The former name of this
criterion, ``repulsive``, still works.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from fairseq.criterions import register_criterion
from torch import Tensor, nn

from ..compat import UsageError, exit_on_bad_input
from ..core.head_hooks import HasHeadHooks, HeadOutputs, hook_heads
from ..core.heads import HeadGroup, find_heads, select_heads
from ..core.losses import NamedLoss
from ..core.meters import meters_wanted
from ..methods.head_diversity import HeadDiversity, diversity_losses, parameter_cosine
from ..methods.repulsive.meter import (
    feature_meters,
    feature_sums,
    head_cosine,
    layer_cosines,
    systems_of,
)
from ..models.method_flags import settings_flags, settings_from
from .attention_losses import AttentionLosses, wrapping_config

logger = logging.getLogger(__name__)
FLAGS = ("--diversity-sites", "--diversity-layers")


@register_criterion(
    "head_diversity",
    dataclass=wrapping_config("HeadDiversityCriterionConfig", settings_flags(HeadDiversity)),
)
class HeadDiversityCriterion(AttentionLosses):
    """Task loss + weight · similarity of the heads."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.diversity = settings_from(HeadDiversity, cfg)
        self.terms: list[tuple[str, NamedLoss]] = []

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        self.terms = []
        learning = torch.is_grad_enabled()

        def hook(layer: str, heads: HeadOutputs) -> None:
            if learning and not torch.is_grad_enabled():
                raise UsageError(
                    "--checkpoint-activations hides the heads from --criterion head_diversity; "
                    "leave the flag out (or use --update-freq to save memory)"
                )
            self.terms += diversity_losses(heads, self.diversity)
            if meters_wanted():
                keep = None if heads.padding is None else ~heads.padding
                sums = feature_sums(heads.outputs.transpose(1, 2), keep)
                meters = feature_meters(sums)._asdict()
                self.terms += as_terms(meters)
                dist = {f"dist_{layer}": sums[1] / sums[3].clamp(min=1)}
                self.terms += as_terms({f"{k}_{layer}": v for k, v in meters.items()} | dist)

        with ExitStack() as hooks:
            for group in self.hooked_groups(model):
                layer = f"{group.site}_{group.layer}"
                hooks.enter_context(hook_heads([group.module], partial(hook, layer)))
            return super().forward(model, sample, reduce)

    def groups(self, model: nn.Module) -> list[HeadGroup]:
        """The heads that are penalised; exits if an attention module has only one head."""
        with exit_on_bad_input():
            groups = select_heads(
                find_heads(model), self.diversity.sites, self.diversity.layers, FLAGS
            )
        for group in groups:
            if group.num_heads < 2:
                raise UsageError(f"--criterion head_diversity: {group.name} has only one head")
        return groups

    def hooked_groups(self, model: nn.Module) -> list[HeadGroup]:
        """The attention modules whose head outputs or weights are needed."""
        kind = self.diversity.kind
        groups = self.groups(model)
        shown = [group for group in groups if isinstance(group.module, HasHeadHooks)]
        if kind == "cosine" and not self.diversity.log_dist:
            # In training a hook would keep a fused kernel from being used.
            return [] if model.training else shown
        if len(shown) < len(groups):
            need = "--log-dist" if kind == "cosine" else f"--diversity {kind}"
            raise UsageError(
                f"{need}: fairseq's own attention does not expose its heads; use an arch of this "
                "package, e.g. transformer_deterministic instead of transformer (same weights)"
            )
        return groups

    def losses_of(self, model: nn.Module) -> Iterator[tuple[str, NamedLoss]]:
        yield from super().losses_of(model)
        terms, self.terms = self.terms, []
        yield from terms
        if self.diversity.kind == "cosine":
            value = parameter_cosine(self.groups(model))
            yield "cosine", NamedLoss(value, self.diversity.weight, "layer_mean")
        if self.meters_due(model):
            groups = self.groups(model)
            cosine = head_cosine(systems_of(groups))
            yield from as_terms({} if cosine is None else {"head_cosine": cosine})
            systems = [
                (f"{group.site}_{group.layer}", group.num_heads, parts)
                for group in groups
                for parts in group.parameters.values()
            ]
            for layer, value in layer_cosines(systems).items():
                yield from as_terms({f"head_cosine_{layer}": value})


def as_terms(meters: Mapping[str, Tensor]) -> list[tuple[str, NamedLoss]]:
    """The meters of one module as terms of the log, which shows their mean over the modules."""
    return [
        (name, NamedLoss(value, None, "mean", torch.ones_like(value)))
        for name, value in meters.items()
    ]


@register_criterion(
    "repulsive",
    dataclass=wrapping_config("RepulsiveCriterionConfig", settings_flags(HeadDiversity)),
)
class RepulsiveCriterion(HeadDiversityCriterion):
    """``head_diversity`` under its former name; logs a warning."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        logger.warning(
            "--criterion repulsive is now called head_diversity; repulsive attention is "
            "--optimizer repulsive"
        )
