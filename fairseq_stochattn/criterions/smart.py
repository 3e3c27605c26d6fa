"""SMART (Jiang et al. 2020): predictions shall not change within a ball around the embeddings.

    loss = L(X) + λ_s · max_{‖δ‖_∞ ≤ ε} l_s(f(X + δ), f(X)),  δ ← Π(δ + η·g/‖g‖_∞),  δ_0 ~ N(0, σ²)

l_s is the symmetric KL divergence, for regression the squared difference, over all that the task
predicts: sentences, options, tagged words, masked or target tokens. All passes see the same
dropout, so l_s is zero without a perturbation; the losses of the attention are those of the clean
pass. The paper's second part, the Bregman proximal point with its momentum, is left out: it needs
a second copy of the model. Logged: ``smart``, ``smart_weight``, ``delta_norm``, ``objective``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.method import NamedLoss, collect_losses
from fairseq_stochattn.criterions.attention_losses import wrapping_config
from fairseq_stochattn.criterions.decisions import (
    decisions,
    is_regression,
    squared_difference,
    symmetric_kl,
    watching_outputs,
)
from fairseq_stochattn.criterions.elbo import AnnealedKL, ElboConfig
from fairseq_stochattn.errors import require_not_negative, require_positive
from fairseq_stochattn.perturbation import Ascent, Perturbation, normal_start


@dataclass
class SmartConfig(FairseqDataclass):
    smart_weight: float = field(default=1.0, metadata={"help": "λ_s; 1, 3 or 5 in the paper"})
    smart_steps: int = field(default=1, metadata={"help": "steps of ascent"})
    smart_lr: float = field(default=1e-3, metadata={"help": "η, length of a step"})
    smart_radius: float = field(
        default=1e-3,
        metadata={
            "help": "ε, largest change of a component; 0: no bound. As long as a step, as in the "
            "authors' code; at the paper's 1e-5 the term is next to nothing"
        },
    )
    smart_noise: float = field(
        default=1e-5, metadata={"help": "σ of the normal noise that the perturbation begins with"}
    )


@register_criterion(
    "smart", dataclass=wrapping_config("SmartCriterionConfig", SmartConfig, ElboConfig)
)
class Smart(AnnealedKL):
    """The task's loss plus a price on predictions that a small perturbation changes."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        require_positive(cfg, "smart_steps")
        require_not_negative(cfg, "smart_weight", "smart_lr", "smart_radius", "smart_noise")
        self.ascent = Ascent(cfg.smart_lr, cfg.smart_radius, order=math.inf)
        self.left: list[tuple[str, NamedLoss]] = []

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not model.training:
            return super().forward(model, sample, reduce)
        perturbation = Perturbation(partial(normal_start, deviation=self.cfg.smart_noise))
        state = utils.get_rng_state()
        with watching_outputs(model) as outputs:
            loss, sample_size, log = self.task_pass(model, sample, reduce)
        clean = decisions(self.task_criterion, sample, outputs)
        self.left = list(collect_losses(model))

        def perturbed() -> Tensor:
            utils.set_rng_state(state)
            with perturbation.applied(model), watching_outputs(model) as outputs:
                self.task_pass(model, sample, reduce)
            list(collect_losses(model))  # they count once
            return decisions(self.task_criterion, sample, outputs)

        for _ in range(self.cfg.smart_steps):
            perturbation.ascend(self.divergence(perturbed(), clean.detach()), self.ascent)
        smart = self.divergence(perturbed(), clean)
        self.left.append(("smart", NamedLoss(smart, self.cfg.smart_weight)))
        log["attention/delta_norm"] = perturbation.size(self.ascent.order) * sample_size
        return self.with_named_losses(model, loss, sample_size, log)

    def losses_of(self, model: nn.Module) -> Iterator[tuple[str, NamedLoss]]:
        left, self.left = self.left, []
        yield from left
        yield from super().losses_of(model)

    def divergence(self, predicted: Tensor, clean: Tensor) -> Tensor:
        """l_s, a sum over what is predicted."""
        measure = squared_difference if is_regression(self.task_criterion) else symmetric_kl
        return measure(predicted, clean)
