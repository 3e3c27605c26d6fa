"""Reads a task's predictions from a model's outputs, and computes divergences between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.sentence_ranking import SentenceRankingCriterion
from torch import Tensor, nn

from ..compat import UsageError
from ..core.divergences import Divergence
from ..tasks.token_tagging import IGNORED
from .electra import ElectraCriterion
from .question_answering import QuestionAnsweringCriterion
from .token_tagging import TokenTaggingCriterion
from .vqa import VQACriterion

FORWARD = Divergence()  # KL(p_clean ‖ p_adversarial) with a constant p_clean
# Criterions with one prediction per target token, over a vocabulary.
OVER_TOKENS = (CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion, AdaptiveLoss)


@contextmanager
def record_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, the first output of every forward pass is appended to the list."""
    outputs: list[Tensor] = []
    handle = model.register_forward_hook(lambda _, inputs, output: outputs.append(output[0]))
    try:
        yield outputs
    finally:
        handle.remove()


def target_logits(
    criterion: FairseqCriterion, sample: dict[str, Any], outputs: Sequence[Tensor]
) -> Tensor:
    """The logits of every target, (n, classes); for a regression its values, (n, 1).

    ``outputs`` are the outputs of all forward passes that the task's ``criterion`` ran.
    """
    if isinstance(criterion, AdaptiveLoss):
        raise UsageError(
            "an adaptive softmax has no logits over the whole vocabulary; leave out "
            "--adaptive-softmax-cutoff"
        )
    if isinstance(criterion, SentenceRankingCriterion):
        return torch.cat(list(outputs), dim=1)  # one distribution over the options
    (logits,) = outputs
    if isinstance(criterion, VQACriterion):
        return F.logsigmoid(logits.float())  # its softmax: the sigmoids, divided by their sum
    if isinstance(criterion, ElectraCriterion):
        not_padding = sample["net_input"]["src_tokens"].ne(criterion.padding_idx)
        replaced = logits[not_padding]
        return torch.stack([torch.zeros_like(replaced), replaced], dim=-1)
    if isinstance(criterion, QuestionAnsweringCriterion):
        return criterion.logits(logits, sample).flatten(0, 1)  # the start and the end of each row
    if logits.dim() == 2:  # one row per sentence, or per masked token
        return logits
    ignored = IGNORED if isinstance(criterion, TokenTaggingCriterion) else criterion.padding_idx
    return logits[sample["target"].ne(ignored)]


def is_regression(criterion: FairseqCriterion) -> bool:
    """Whether the task predicts numbers instead of classes."""
    return getattr(criterion, "regression_target", False)


@dataclass(frozen=True)
class PairedPredictions:
    """The clean and adversarial outputs of all forward passes that the task's criterion ran."""

    model: nn.Module
    sample: dict[str, Any]
    criterion: Any  # the task's own
    clean: Sequence[Tensor]
    adversarial: Sequence[Tensor]


def divergence(predictions: PairedPredictions, between: Divergence = FORWARD) -> Tensor:
    """D[p_clean, p_adversarial] of Wu et al. 2022, Eq. 6 and 10, a scalar.

    It is a sum over the targets that the task's own loss sums over: target tokens, masked or tagged
    tokens, sentences, starts and ends of answers. For regression D is the squared difference.
    """
    if isinstance(predictions.criterion, OVER_TOKENS):
        return _divergence_of_tokens(predictions, between)
    clean, adversarial = (
        target_logits(predictions.criterion, predictions.sample, outputs)
        for outputs in (predictions.clean, predictions.adversarial)
    )
    if is_regression(predictions.criterion):
        return between.of_values(clean, adversarial)
    return between(clean, adversarial).sum()


def _divergence_of_tokens(predictions: PairedPredictions, between: Divergence) -> Tensor:
    """``divergence`` of translation and language models.

    Masks the divergences of padding instead of selecting logits, which would copy them.
    """
    (clean,), (adversarial,) = predictions.clean, predictions.adversarial  # (B, T, V or C)
    softmax = getattr(predictions.model.decoder, "adaptive_softmax", None)
    if softmax is None:
        kl = between(clean, adversarial)
    else:
        kl = between.adaptive(softmax, clean, adversarial)
    target = predictions.model.get_targets(predictions.sample, [clean])
    counted = target.ne(predictions.criterion.padding_idx)
    counted[:, : getattr(predictions.criterion, "ignore_prefix_size", 0)] = False
    return kl.masked_fill(~counted, 0.0).sum()
