"""The evidence lower bound: the task's own loss plus the annealed KL of Bayesian attention.

``--criterion elbo --task-criterion label_smoothed_cross_entropy --label-smoothing 0.1``
ELBO = log p(y|x, S) − w(t)·KL. Logged per token (per sentence where the task counts sentences), in
nats: ``nll``, ``kl``, ``kl_weight``, ``elbo`` and ``noise``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.method import AttentionMethod, NamedLoss, Schedule
from fairseq_stochattn.criterions.attention_losses import AttentionLosses, wrapping_config
from fairseq_stochattn.errors import require_not_negative


@dataclass
class ElboConfig(FairseqDataclass):
    kl_weight: float = field(default=0.0001, metadata={"help": "w, full weight of the KL"})
    kl_start: int = field(default=0, metadata={"help": "update at which the KL sets in"})
    kl_anneal_updates: int = field(
        default=4000, metadata={"help": "updates over which w grows from 0 to its full weight"}
    )
    kl_reduction: ChoiceEnum(["mean", "sum"]) = field(
        default="mean",
        metadata={
            "help": "KL a token: the mean over a layer's valid cells, added over the layers; or "
            "the sum over all cells, which is the exact ELBO"
        },
    )


class AnnealedKL(AttentionLosses):
    """Weighs the KL of Bayesian attention by the flags of ``ElboConfig``."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        require_not_negative(cfg, "kl_weight", "kl_start", "kl_anneal_updates")
        self.schedule = Schedule(cfg.kl_weight, cfg.kl_start, cfg.kl_anneal_updates)
        self.mean = str(cfg.kl_reduction) == "mean"

    def weight(self, model: nn.Module) -> float:
        """w of this update; at test time its full value."""
        return self.schedule(updates_of(model)) if model.training else self.schedule.weight

    def reduce_loss(
        self, name: str, loss: NamedLoss, model: nn.Module, sample_size: Any
    ) -> tuple[Tensor, float | None]:
        if name != "kl":
            return super().reduce_loss(name, loss, model, sample_size)
        value = loss.value
        if self.mean:
            value = value / loss.count.clamp(min=1) * sample_size
        return value, self.weight(model)


def updates_of(model: nn.Module) -> int:
    """How many updates the model has had, as its methods know."""
    methods = (m for m in model.modules() if isinstance(m, AttentionMethod))
    return next((m.num_updates for m in methods), 0)


@register_criterion("elbo", dataclass=wrapping_config("ElboCriterionConfig", ElboConfig))
class Elbo(AnnealedKL):
    """Negative ELBO of the task under Bayesian attention (babn, bam)."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        loss, sample_size, log = super().forward(model, sample, reduce)
        nll = torch.as_tensor(log.get("nll_loss", log["loss"])).detach().sum()
        kl = log.get("attention/kl", 0.0)
        log["attention/nll"] = nll
        log["attention/elbo"] = -(nll + self.weight(model) * kl)
        return loss, sample_size, log
