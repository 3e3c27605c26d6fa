"""What a model decides in a batch, whatever the task: one distribution a row, and how far two of
them are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.sentence_ranking import SentenceRankingCriterion
from torch import Tensor, nn

from fairseq_stochattn.criterions.electra import ElectraCriterion
from fairseq_stochattn.criterions.tagging import TokenTaggingCriterion
from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.tasks.tagging import IGNORED


@contextmanager
def watching_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within, the first output of every forward of the model is put into the list."""
    found: list[Tensor] = []
    handle = model.register_forward_hook(lambda _, inputs, output: found.append(output[0]))
    try:
        yield found
    finally:
        handle.remove()


def decisions(
    criterion: FairseqCriterion, sample: dict[str, Any], outputs: Sequence[Tensor]
) -> Tensor:
    """(n, classes): the logits wherever the task has a target; of a regression (n, 1) its values.

    ``outputs`` are those of the forwards that the task's ``criterion`` took.
    """
    if isinstance(criterion, AdaptiveLoss):
        raise UsageError("an adaptive softmax has no distribution over the whole vocabulary")
    if isinstance(criterion, SentenceRankingCriterion):
        return torch.cat(list(outputs), dim=1)  # one distribution over the options
    (logits,) = outputs
    if isinstance(criterion, ElectraCriterion):
        real = sample["net_input"]["src_tokens"].ne(criterion.padding_idx)
        replaced = logits[real]
        return torch.stack([torch.zeros_like(replaced), replaced], dim=-1)
    if logits.dim() == 2:  # sentences, or tokens that the model was asked for
        return logits
    ignored = IGNORED if isinstance(criterion, TokenTaggingCriterion) else criterion.padding_idx
    return logits[sample["target"].ne(ignored)]


def is_regression(criterion: FairseqCriterion) -> bool:
    return getattr(criterion, "regression_target", False)


def symmetric_kl(logits: Tensor, others: Tensor) -> Tensor:
    """Σ KL(p‖q) + KL(q‖p) over rows, which is Σ (p − q)(log p − log q)."""
    log_p, log_q = (at_least_float(x).log_softmax(dim=-1) for x in (logits, others))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()


def squared_difference(values: Tensor, others: Tensor) -> Tensor:
    return (at_least_float(values) - at_least_float(others)).square().sum()
