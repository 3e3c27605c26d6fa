"""``--criterion elbo``: the task's own loss plus the annealed KL of Bayesian attention.

ELBO = log p(y|x, S) − w(t)·KL, where S is a sample of the attention and w(t) the weight at update
t. With w = 1 and ``--kl-reduction sum``, its mean over S is a lower bound of log p(y|x). The KL
carries its own weight, schedule and reduction (the flags ``--kl-…``), so the objective is the same
under every criterion of this package. Every criterion logs ``kl``, ``kl_weight`` and ``noise``;
only this one also logs ``nll`` and ``elbo``. ``kl``, ``nll`` and ``elbo`` are in nats per target.

In validation, the task's loss and ``nll`` are those of the mean attention, as at test time. A
second pass with sampled attention gives ``nll_sampled``, ``kl`` and ``elbo``.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.criterions import register_criterion
from torch import Tensor, nn

from ..core.losses import collecting_losses, take_losses, weighted_sum
from ..core.meters import probing
from ..uncertainty.sampling import is_random, sampled_attention
from .attention_losses import AttentionLosses, wrapping_config


@register_criterion("elbo", dataclass=wrapping_config("ElboCriterionConfig"))
class Elbo(AttentionLosses):
    """Negative ELBO of the task under Bayesian attention (babn, bam)."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        loss, sample_size, log = super().forward(model, sample, reduce)
        nll = log["attention/nll"] = nll_of(log)
        if not model.training and is_random(model):
            nll, log["attention/kl"] = self.sampled_terms(model, sample)
            log["attention/nll_sampled"] = nll
        kl = log.get("attention/kl", 0.0)
        weight = log.get("attention/kl_weight", 0.0) / sample_size
        log["attention/elbo"] = -(nll + weight * kl)
        return loss, sample_size, log

    def sampled_terms(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """nll and KL of one sample of the attention, without dropout; both summed over targets."""
        with probing(model), sampled_attention([model]), collecting_losses():
            _, sample_size, log = self.task_loss(model, sample)
            _, terms = weighted_sum(take_losses(model), sample_size)
        return nll_of(log), terms["kl"]


def nll_of(log: dict[str, Any]) -> Tensor:
    """The summed nll in a log of the task's criterion."""
    return torch.as_tensor(log.get("nll_loss", log["loss"])).detach().sum()
