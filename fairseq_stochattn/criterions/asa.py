"""Adversarial self-attention's objective (Wu et al. 2022, Eq. 9):

    L_e + α·D[p_clean, p_attacked] + τ·(masked share of valid cells)

``--criterion asa --arch roberta_asa``, or an arch with another mask (bernoulli, scheduled,
magnitude), which has no third term. In pre-training, Eq. 10, D is taken at the first position's
final state too, as a distribution over its units. The losses of other methods, such as the KL of
``--attention babn,asa``, are those of the clean half; that KL is weighted as by ``elbo``.
Logged: ``asa`` and ``asa_sentence``, ``masked_share`` over all layers and of each, ``objective``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.doubling import doubled_batch, twice
from fairseq_stochattn.attention.masking import Masking
from fairseq_stochattn.attention.method import NamedLoss
from fairseq_stochattn.criterions.attention_losses import task_criterion_name, wrapping_config
from fairseq_stochattn.criterions.divergence import Predictions, categorical_kl, divergence
from fairseq_stochattn.criterions.elbo import AnnealedKL, ElboConfig, updates_of
from fairseq_stochattn.errors import UsageError, require_not_negative

# Where Eq. 10 holds, and the paper's τ there and elsewhere.
PRETRAINING = ("masked_lm", "electra")
PRETRAINING_TAU, TAU = 0.1, 0.3


@dataclass
class AsaConfig(FairseqDataclass):
    asa_weight: float = field(default=1.0, metadata={"help": "α, weight of the divergence"})
    asa_tau: Optional[float] = field(
        default=None,
        metadata={
            "help": "τ, what the adversary pays for the masked share: less of it, more masks; "
            f"default: {TAU}, and {PRETRAINING_TAU} in pre-training ({', '.join(PRETRAINING)})"
        },
    )
    asa_start: int = field(
        default=0, metadata={"help": "update at which the attack sets in; before it nothing costs"}
    )


class Attacked:
    """A model in the hands of its criterion: each forward runs the batch twice, in one go.

    The criterion gets the clean half; the other half is kept. What stands beside the predictions
    (attention maps, inner states) is handed on as it is: no criterion that is wrapped reads it.
    """

    def __init__(self, model: nn.Module, sample: dict[str, Any]) -> None:
        self.model, self.sample = model, sample
        self.clean: list[Tensor] = []
        self.attacked: list[Tensor] = []
        self.first: list[Tensor] = []  # (2B, C): final states of the first position

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        inputs = {name: twice(value) for name, value in kwargs.items()}
        with doubled_batch():
            x, extra = self.model(*map(twice, args), **inputs)
        for half, kept in zip(x.chunk(2), (self.clean, self.attacked), strict=True):
            kept.append(half)
        return self.clean[-1], extra

    @contextmanager
    def keeping_first_states(self) -> Iterator[None]:
        def keep(module: nn.Module, inputs: Any, out: dict[str, list[Tensor]]) -> None:
            self.first.append(out["encoder_out"][0][0])  # of (T, 2B, C)

        hook = self.model.encoder.sentence_encoder.register_forward_hook(keep)
        try:
            yield
        finally:
            hook.remove()


@register_criterion("asa", dataclass=wrapping_config("AsaCriterionConfig", AsaConfig, ElboConfig))
class AsaCriterion(AnnealedKL):
    """The task's loss, the divergence under attack and the adversary's penalty."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.kind = task_criterion_name(cfg.task_criterion, task)
        tau = PRETRAINING_TAU if self.kind in PRETRAINING else TAU
        self.tau = tau if cfg.asa_tau is None else cfg.asa_tau
        require_not_negative(cfg, "asa_weight", "asa_start")
        if self.tau < 0:
            raise UsageError("--asa-tau must not be negative")

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not any(isinstance(module, Masking) for module in model.modules()):
            raise UsageError(
                "--criterion asa: this model masks nothing; use an arch such as roberta_asa, or "
                "end --attention in asa, bernoulli, scheduled or magnitude"
            )
        if not model.training or updates_of(model) < self.cfg.asa_start:
            with doubled_batch(False):
                return super().forward(model, sample, reduce)
        attacked = Attacked(model, sample)
        if self.kind not in PRETRAINING:
            return super().forward(attacked, sample, reduce)
        with attacked.keeping_first_states():
            return super().forward(attacked, sample, reduce)

    def losses_of(self, model: nn.Module) -> Iterator[tuple[str, NamedLoss]]:
        yield from super().losses_of(model)
        if isinstance(model, Attacked):
            yield from self.divergences(model)

    def divergences(self, seen: Attacked) -> Iterator[tuple[str, NamedLoss]]:
        weight = self.cfg.asa_weight
        if self.kind == "electra":  # on the scale of the discriminator's own loss
            weight *= self.task_criterion.rtd_weight
        predictions = Predictions(
            seen.model, seen.sample, self.task_criterion, seen.clean, seen.attacked
        )
        yield "asa", NamedLoss(divergence(predictions), weight)
        for states in seen.first:
            kl = categorical_kl(*states.chunk(2))  # (B,)
            count = kl.new_tensor(len(kl))
            yield "asa_sentence", NamedLoss(kl.sum(), self.cfg.asa_weight, mean=True, count=count)

    def reduce_loss(
        self, name: str, loss: NamedLoss, model: nn.Module, sample_size: Any
    ) -> tuple[Tensor, float | None]:
        value, weight = super().reduce_loss(name, loss, model, sample_size)
        return value, self.tau * weight if name == "masked_share" and weight else weight
