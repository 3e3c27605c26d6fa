"""``--criterion asa``: the objective of adversarial self-attention (Wu et al. 2022, Eq. 9).

    L_e + α·D[p_clean, p_adversarial] + τ·(penalty on masks)

It needs an arch such as roberta_asa, or one of the other masks (bernoulli, scheduled, magnitude),
which have no third term. In pre-training (Eq. 10) D is also computed between the final states of
the first position, each read as logits over its units. The losses of other methods, such as the KL
of ``--attention babn,asa``, count the clean half only. Logged: ``asa``, ``asa_sentence``,
``masked_share`` over all layers and per layer, ``objective``, and every ``--meter-interval``
updates ``divergence_ratio`` (methods/asa/meter.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.logging import metrics
from torch import Tensor, nn

from ..compat import UsageError
from ..core.divergences import Divergence
from ..core.losses import NamedLoss, weighted_sum
from ..core.masking import MaskingMethod
from ..core.method import AttentionMethod
from ..core.paired_batch import paired_batch, twice
from ..methods.asa import ASA
from ..methods.asa.attention import with_budget
from ..methods.asa.meter import divergence_ratio, mask_meters
from ..models.method_flags import settings_flags, settings_from
from ..tasks.kinds import PRETRAINING, criterion_name
from .attention_losses import AttentionLosses, wrapping_config
from .predictions import PairedPredictions, divergence

DIVERGENCE = "divergence_under_"  # names in the logging output: divergence_under_masked, …_random


class PairedModel:
    """Wraps a model: each forward pass runs the batch as a clean and an adversarial half.

    The wrapped criterion receives the clean half; both halves are stored. Other outputs (attention
    maps, inner states) still have both halves, since no wrapped criterion reads them.
    """

    def __init__(self, model: nn.Module, sample: dict[str, Any]) -> None:
        self.model, self.sample = model, sample
        self.clean: list[Tensor] = []
        self.adversarial: list[Tensor] = []
        self.first_states: list[Tensor] = []  # (2B, C): final states of the first position

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        with paired_batch():
            x, extra = self.model(*map(twice, args), **twice(kwargs))
        clean, adversarial = x.chunk(2)
        self.clean.append(clean)
        self.adversarial.append(adversarial)
        return clean, extra

    @contextmanager
    def storing_first_states(self) -> Iterator[None]:
        """Within the block, the first position's final state of every forward pass is stored."""

        def store(module: nn.Module, inputs: Any, out: dict[str, list[Tensor]]) -> None:
            self.first_states.append(out["encoder_out"][0][0])  # of (T, 2B, C)

        hook = self.model.encoder.sentence_encoder.register_forward_hook(store)
        try:
            yield
        finally:
            hook.remove()


OWN_FLAGS = settings_flags(ASA, "weight", "start", "warmup", "divergence", "clean_gradient")


@register_criterion("asa", dataclass=wrapping_config("AsaCriterionConfig", OWN_FLAGS))
class AsaCriterion(AttentionLosses):
    """Task loss + α · divergence under masks + τ · penalty on masks."""

    needs_logits = True

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.kind = criterion_name(cfg.task_criterion, task)
        self.asa = settings_from(ASA, cfg)
        symmetric = self.asa.divergence == "symmetric"
        self.between = Divergence(symmetric, self.asa.clean_gradient)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        if not any(isinstance(module, MaskingMethod) for module in model.modules()):
            raise UsageError(
                "--criterion asa: this model masks nothing; use an arch such as roberta_asa, or "
                "end --attention in asa, bernoulli, scheduled or magnitude"
            )
        if not model.training or num_updates_of(model) < self.asa.start:
            with paired_batch(False):
                return super().forward(model, sample, reduce)
        paired = PairedModel(model, sample)
        storing = paired.storing_first_states() if self.kind in PRETRAINING else nullcontext()
        with storing:
            loss, sample_size, log = super().forward(paired, sample, reduce)
        if self.meters_due(model):
            log.update(self.divergences_by_masks(model, sample))
        return loss, sample_size, log

    def divergences_by_masks(self, model: nn.Module, sample: dict[str, Any]) -> dict[str, Tensor]:
        """The divergences under the masks and under random masks, for the log.

        Runs two forward passes, after the losses have been taken from the model.
        """

        def run() -> Tensor:
            paired = PairedModel(model, sample)
            self.task_criterion(paired, sample)
            return divergence(self.predictions(paired))

        meters = mask_meters(model, run)
        return {f"{DIVERGENCE}masked": meters.masked, f"{DIVERGENCE}random": meters.random}

    def predictions(self, paired: PairedModel) -> PairedPredictions:
        """The predictions of both halves."""
        outputs = paired.clean, paired.adversarial
        return PairedPredictions(paired.model, paired.sample, self.task_criterion, *outputs)

    def with_named_losses(
        self, model: nn.Module, loss: Tensor, sample_size: Any, log: dict[str, Any]
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        losses = list(self.losses_of(model))
        if isinstance(model, PairedModel):
            divergences = list(self.divergences(model))
            # The adversary sees the whole divergence in the warm-up too.
            total, _ = weighted_sum(divergences, sample_size)
            total = total / sample_size / self.asa.warmth(num_updates_of(model.model))
            losses = [*with_budget(model.model, losses, total), *divergences]
        return self.with_losses(losses, loss, sample_size, log)

    def divergences(self, paired: PairedModel) -> Iterator[tuple[str, NamedLoss]]:
        """The divergences between the predictions of both halves, with their weights."""
        weight = sentence_weight = self.asa.weight * self.asa.warmth(num_updates_of(paired.model))
        if self.kind == "electra":  # on the scale of the discriminator's own loss
            weight *= self.task_criterion.rtd_weight
        yield "asa", NamedLoss(divergence(self.predictions(paired), self.between), weight)
        for states in paired.first_states:
            kl = self.between(*states.chunk(2))  # (B,)
            count = kl.new_tensor(len(kl))
            yield "asa_sentence", NamedLoss(kl.sum(), sentence_weight, "mean", count)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        if any(f"{DIVERGENCE}random" in log for log in logging_outputs):
            # A ratio of sums: the mean of ratios would be dominated by batches that hardly change.
            masked, random = (
                sum(log.get(f"{DIVERGENCE}{name}", 0.0) for log in logging_outputs)
                for name in ("masked", "random")
            )
            metrics.log_scalar("divergence_ratio", divergence_ratio(masked, random), round=4)


def num_updates_of(model: nn.Module) -> int:
    """The number of updates so far, read from the model's first attention method."""
    methods = (m for m in model.modules() if isinstance(m, AttentionMethod))
    return next((m.num_updates for m in methods), 0)
