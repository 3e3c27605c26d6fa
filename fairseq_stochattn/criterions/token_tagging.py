"""``--criterion token_tagging``: cross entropy over the tags of words.

Subwords without a tag are ignored, both in the loss and in ``sample_size``. Logged: ``loss``,
``accuracy``, and in validation ``f1`` of the spans if the tags mark spans.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from ..analysis.metrics import SpanCounts, count_spans, marks_spans
from ..compat import UsageError
from ..tasks.token_tagging import IGNORED, TAGGING_HEAD

_COUNTS = ("right", "predicted", "gold")


@register_criterion("token_tagging", dataclass=FairseqDataclass)
class TokenTaggingCriterion(FairseqCriterion):
    """− Σ log p(tag | sentence) over the words."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        if "target" not in sample:
            raise UsageError("a set without labels cannot be used for training or validation")
        logits, _ = model(**sample["net_input"], classification_head_name=TAGGING_HEAD)
        target = model.get_targets(sample, [logits])  # (B, T)
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        predicted = logits.argmax(dim=-1)
        sample_size = target.ne(IGNORED).sum()
        log = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
            "ncorrect": predicted.eq(target).sum(),  # no tag has the index IGNORED
        }
        if not model.training and marks_spans(self.task.tags):
            log |= vars(self._spans(target.cpu(), predicted.cpu()))
        return loss, sample_size, log

    def _spans(self, target: Tensor, predicted: Tensor) -> SpanCounts:
        return count_spans(
            *(self.task.tags_of(rows, target.ne(IGNORED)) for rows in (target, predicted))
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        def total(name: str) -> Any:
            return sum(log.get(name, 0) for log in logging_outputs)

        size = total("sample_size")
        metrics.log_scalar("loss", total("loss") / size / math.log(2), size, round=3)
        metrics.log_scalar("accuracy", 100 * total("ncorrect") / size, size, round=2)
        if any("gold" in log for log in logging_outputs):
            for name in _COUNTS:
                metrics.log_scalar(f"_{name}", total(name))  # not printed; f1 needs their sums
            metrics.log_derived("f1", _f1)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _f1(meters: dict[str, Any]) -> float:
    counts = SpanCounts(*(int(meters[f"_{name}"].sum) for name in _COUNTS))
    return round(100 * counts.f1, 2)
