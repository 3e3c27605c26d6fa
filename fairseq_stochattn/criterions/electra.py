"""ELECTRA's objective (Clark et al. 2020, §2): masked language modelling + λ · replaced tokens.

    −1/n Σ_masked log p_G(x_t) − λ/N Σ_all log p_D(whether x̂_t = x_t),  λ = 50

x are the original tokens; in x̂ the masked ones are replaced by samples of the generator G. D is
the discriminator. N is the number of tokens of a batch. n = p·N, with p = ``--mask-prob``, is the
expected number of masked tokens, not the number in this batch, so that the losses of accumulated
batches and of ranks add up. Logged in bits, as fairseq does: ``loss``, ``mlm_loss`` per masked
token, ``rtd_loss`` per token. Logged in per cent: ``replaced`` (the share of replaced tokens),
``rtd_accuracy`` over all tokens, ``rtd_recall`` over the replaced ones.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from ..compat import UsageError, require_not_negative
from ..core.distributions import at_least_float
from ..models.electra_sampling import negative_log_likelihood


@dataclass
class ElectraCriterionConfig(FairseqDataclass):
    """Weights of ELECTRA's two losses."""

    mlm_weight: float = field(default=1.0, metadata={"help": "weight of the generator's loss"})
    rtd_weight: float = field(
        default=50.0, metadata={"help": "λ, weight of the discriminator's loss"}
    )


@register_criterion("electra", dataclass=ElectraCriterionConfig)
class ElectraCriterion(FairseqCriterion):
    """Trains ELECTRA's generator and discriminator together."""

    def __init__(self, cfg: ElectraCriterionConfig, task: Any) -> None:
        super().__init__(task)
        if not getattr(task, "needs_generator", False):
            raise UsageError("--criterion electra goes with --task electra")
        require_not_negative(cfg, "mlm_weight", "rtd_weight")
        self.mlm_weight = cfg.mlm_weight / task.cfg.mask_prob
        self.rtd_weight = cfg.rtd_weight

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        tokens, targets = sample["net_input"]["src_tokens"], sample["target"]  # (B, T)
        masked, not_padding = targets.ne(self.padding_idx), tokens.ne(self.padding_idx)
        logits, extra = model(
            **sample["net_input"], masked_tokens=masked, chance=self.chance(model, sample, masked)
        )
        original = torch.where(masked, targets, tokens)
        replaced = extra["corrupted"].ne(original)
        mlm = self.mlm_loss(extra, targets, masked)
        logits = at_least_float(logits)
        label = replaced.to(logits.dtype)
        rtd = F.binary_cross_entropy_with_logits(
            logits, label, weight=not_padding.to(logits.dtype), reduction="sum"
        )
        loss = self.mlm_weight * mlm + self.rtd_weight * rtd
        sample_size = not_padding.sum()
        right = logits.gt(0).eq(replaced) & not_padding
        log = {
            "loss": loss.detach(),
            "mlm_loss": mlm.detach(),
            "rtd_loss": rtd.detach(),
            "nmasked": masked.sum(),
            "nreplaced": replaced.sum(),
            "nright": right.sum(),
            "nfound": (right & replaced).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
        }
        return loss, sample_size, log

    @staticmethod
    def mlm_loss(extra: dict[str, Any], targets: Tensor, masked: Tensor) -> Tensor:
        """−Σ log p_G(x_t) over the masked positions."""
        return negative_log_likelihood(extra["guesses"], extra["probabilities"], targets[masked])

    def chance(self, model: nn.Module, sample: dict[str, Any], masked: Tensor) -> Tensor | None:
        """One uniform number per masked token, from which the generator's replacement is sampled.

        In training it is None, and the model draws the numbers from torch's generator, which
        fairseq seeds. In validation they depend only on the seed and the sentence, so that every
        epoch has the same replacements.
        """
        if model.training:
            return None
        random, rows = torch.Generator(masked.device), []
        for sentence, count in zip(sample["id"].tolist(), masked.sum(dim=1).tolist(), strict=True):
            random.manual_seed(hash((self.task.cfg.seed, sentence)) % 2**32)
            rows.append(
                torch.rand(count, generator=random, dtype=torch.float64, device=masked.device)
            )
        return torch.cat(rows)

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        def total(key: str) -> Any:
            return sum(log.get(key, 0) for log in logging_outputs)

        def average(name: str, key: str, count: Any, unit: float, digits: int) -> None:
            if count > 0:
                metrics.log_scalar(name, total(key) / count / unit, count, round=digits)

        tokens, bits, percent = total("sample_size"), math.log(2), 0.01
        average("loss", "loss", tokens, bits, digits=3)
        average("mlm_loss", "mlm_loss", total("nmasked"), bits, digits=3)
        average("rtd_loss", "rtd_loss", tokens, bits, digits=4)
        average("rtd_accuracy", "nright", tokens, percent, digits=2)
        average("rtd_recall", "nfound", total("nreplaced"), percent, digits=2)
        average("replaced", "nreplaced", tokens, percent, digits=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
