"""FreeLB (Zhu et al. 2020, Algorithm 1): training on K perturbations of the word embeddings.

    δ_0 ~ U(−ε₀, ε₀)/√(n·C),  δ_t = Π_{‖δ‖ ≤ ε}(δ_{t−1} + α·g/‖g‖),  g = ∇_δ L(X + δ_{t−1})
    loss = 1/K Σ_{t<K} L(X + δ_t)

L is the task's own loss, with every loss of the attention. δ is a constant in the returned loss, so
its gradient is the mean of the K gradients, as the algorithm has it, whatever scales the loss, adds
batches up or reduces over ranks. All passes see the same dropout (§3.3). At test time nothing is
perturbed. Logged: ``loss``, that of δ_0; ``adv_loss``, that of the last δ; ``delta_norm``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.criterions.attention_losses import wrapping_config
from fairseq_stochattn.criterions.elbo import AnnealedKL, ElboConfig
from fairseq_stochattn.errors import require_not_negative, require_positive
from fairseq_stochattn.perturbation import Ascent, Perturbation, uniform_start


@dataclass
class FreeLBConfig(FairseqDataclass):
    freelb_steps: int = field(
        default=2, metadata={"help": "K, passes over a batch, each with a perturbation of its own"}
    )
    freelb_lr: float = field(
        default=0.1, metadata={"help": "α, length of a step of the perturbation of a sentence"}
    )
    freelb_radius: float = field(
        default=0.3,
        metadata={"help": "ε, largest Frobenius norm of a sentence's perturbation; 0: no bound"},
    )
    freelb_init: float = field(
        default=0.1, metadata={"help": "ε₀, magnitude of the uniform noise that it begins with"}
    )


@register_criterion(
    "freelb", dataclass=wrapping_config("FreeLBCriterionConfig", FreeLBConfig, ElboConfig)
)
class FreeLB(AnnealedKL):
    """The task's loss under K adversarial perturbations of the embeddings."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        require_positive(cfg, "freelb_steps")
        require_not_negative(cfg, "freelb_lr", "freelb_radius", "freelb_init")
        self.ascent = Ascent(cfg.freelb_lr, cfg.freelb_radius, order=2)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not model.training:
            return super().forward(model, sample, reduce)
        steps = self.cfg.freelb_steps
        perturbation = Perturbation(partial(uniform_start, magnitude=self.cfg.freelb_init))
        state = utils.get_rng_state()
        objectives, logs = [], []
        for step in range(steps):
            utils.set_rng_state(state)
            with perturbation.applied(model):
                task_loss, sample_size, log = self.task_pass(model, sample, reduce)
            if step + 1 < steps:
                perturbation.ascend(task_loss, self.ascent)
            objective, _, log = self.with_named_losses(model, task_loss, sample_size, log)
            objectives.append(objective / steps)
            logs.append(log)
        named = {key for key in logs[0] if key.startswith("attention/")}
        loss, log = sum(objectives), logs[0]
        log.update({key: sum(one[key] for one in logs) / steps for key in named})
        # In bits, as fairseq logs the loss that it is to be compared with.
        log["attention/adv_loss"] = task_loss.detach().sum() / math.log(2)
        log["attention/delta_norm"] = perturbation.size(self.ascent.order) * sample_size
        log["objective"] = loss.detach().sum()
        return loss, sample_size, log
