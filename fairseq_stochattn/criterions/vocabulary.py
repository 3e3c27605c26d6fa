"""fairseq's cross entropies over a vocabulary, computed together with the output layer.

The results are those of fairseq to rounding, for less time and memory (core/vocabulary_loss.py).
"""

from __future__ import annotations

from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from torch import Tensor, nn

from ..models.output_layer import LossOutputLayer, LossRequest, requesting_loss


def smoothing_of(criterion: FairseqCriterion) -> float | None:
    """The label smoothing of a criterion that needs nothing but its loss; None of any other."""
    if type(criterion) is CrossEntropyCriterion:
        return 0.0
    if type(criterion) is not LabelSmoothedCrossEntropyCriterion:
        return None
    if criterion.report_accuracy or criterion.ignore_prefix_size:
        return None
    return criterion.eps


def criterion_pass(
    criterion: FairseqCriterion, model: nn.Module, sample: dict[str, Any], reduce: bool = True
) -> tuple[Tensor, Any, dict[str, Any]]:
    """What ``criterion(model, sample, reduce)`` returns, without logits where that is possible."""
    decoder, smoothing = getattr(model, "decoder", None), smoothing_of(criterion)
    if not (reduce and isinstance(decoder, LossOutputLayer)) or smoothing is None:
        return criterion(model, sample, reduce)
    targets = model.get_targets(sample, None)
    request = LossRequest(targets, criterion.padding_idx, smoothing)
    with requesting_loss(decoder, request):
        net_output = model(**sample["net_input"])
    loss, nll = request.result or criterion.compute_loss(model, net_output, sample)
    sample_size = targets.size(0) if criterion.sentence_avg else sample["ntokens"]
    log = {"loss": loss.data}
    if type(criterion) is LabelSmoothedCrossEntropyCriterion:
        log["nll_loss"] = nll.data
    log |= {
        "ntokens": sample["ntokens"],
        "nsentences": targets.size(0),
        "sample_size": sample_size,
    }
    return loss, sample_size, log
