"""``--criterion vqa``: binary cross entropy of every answer with its soft score.

    loss = − Σ_a [y_a log σ(z_a) + (1 − y_a) log(1 − σ(z_a))]   for the scores y of a question

It is summed over answers and questions, as for MCAN (Yu et al. 2019); ``sample_size`` is the number
of questions. Logged: ``loss``, in bits per question, and ``accuracy``: the mean score of the
predicted answers, which is the accuracy of the VQA challenge.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from ..compat import UsageError
from .token_tagging import TokenTaggingCriterion


@register_criterion("vqa", dataclass=FairseqDataclass)
class VQACriterion(TokenTaggingCriterion):
    """Binary cross entropy of soft answers, summed over all answers."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        if "target" not in sample:
            raise UsageError("a set without labels cannot be used for training or validation")
        logits, _ = model(**sample["net_input"])
        logits, target = logits.float(), model.get_targets(sample, [logits]).float()
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        predicted = logits.argmax(dim=1, keepdim=True)
        log = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": len(target),
            "ncorrect": target.gather(1, predicted).sum(),
        }
        return loss, len(target), log
