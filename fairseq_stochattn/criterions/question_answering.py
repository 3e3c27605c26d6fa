"""``--criterion question_answering``: cross entropy of the start and the end of the answer.

The loss sums over both decisions of every window, and ``sample_size`` counts both, so that fairseq
minimises the mean of the start and the end loss (Devlin et al. 2019, §4.2). Logged: ``loss``,
``accuracy`` of the decisions, and ``exact``, the share of windows in which both are right.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from ..compat import UsageError
from ..tasks.question_answering import SPAN_HEAD, span_logits


@register_criterion("question_answering", dataclass=FairseqDataclass)
class QuestionAnsweringCriterion(FairseqCriterion):
    """− Σ [log p(start | window) + log p(end | window)] over the windows."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        if "target" not in sample:
            raise UsageError("a set without answers cannot be used for training or validation")
        output, _ = model(**sample["net_input"], classification_head_name=SPAN_HEAD)
        logits = self.logits(output, sample)  # (B, 2, T)
        target = sample["target"]  # (B, 2)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        right = logits.argmax(dim=-1).eq(target)
        log = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": target.numel(),
            "ncorrect": right.sum(),
            "nexact": right.all(dim=1).sum(),
        }
        return loss, target.numel(), log

    def logits(self, output: Tensor, sample: dict[str, Any]) -> Tensor:
        """The start and end logits (B, 2, T) in the model's output (B, T, 2)."""
        return span_logits(output, sample["net_input"]["src_tokens"], self.task.dictionary)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        def total(name: str) -> Any:
            return sum(log.get(name, 0) for log in logging_outputs)

        size, windows = total("sample_size"), total("nsentences")
        metrics.log_scalar("loss", total("loss") / size / math.log(2), size, round=3)
        metrics.log_scalar("accuracy", 100 * total("ncorrect") / size, size, round=2)
        metrics.log_scalar("exact", 100 * total("nexact") / windows, windows, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
