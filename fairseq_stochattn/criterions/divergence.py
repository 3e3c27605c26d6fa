"""How far apart the predictions of a clean and an attacked model are: D[p_clean, p_attacked] of Wu
et al. 2022, Eq. 6 and 10, for each kind of task.

p_clean is a constant (virtual adversarial training). Sums over what the task's own loss sums over:
target tokens, masked or tagged tokens, sentences; padding is in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor, nn

from fairseq_stochattn.criterions.decisions import decisions, is_regression, squared_difference
from fairseq_stochattn.distributions import at_least_float

# One prediction a target token, over a vocabulary.
OVER_TOKENS = (CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion, AdaptiveLoss)


class _CategoricalKl(torch.autograd.Function):
    """``categorical_kl`` of rows (N, K), with fewer tensors of a vocabulary's width."""

    @staticmethod
    def forward(ctx: Any, clean: Tensor, attacked: Tensor) -> Tensor:
        difference, log_q = clean.log_softmax(dim=-1), attacked.log_softmax(dim=-1)
        p = difference.exp()
        ctx.save_for_backward(p, log_q)
        return torch.linalg.vecdot(p, difference.sub_(log_q))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        p, log_q = ctx.saved_tensors
        return None, log_q.exp().sub_(p).mul_(gradient.unsqueeze(-1))


def categorical_kl(clean: Tensor, attacked: Tensor) -> Tensor:
    """KL(p_clean ‖ p_attacked) from logits or log-probabilities, (…, K) → (…)."""
    return _CategoricalKl.apply(at_least_float(clean).detach(), at_least_float(attacked))


def adaptive_kl(softmax: AdaptiveSoftmax, clean: Tensor, attacked: Tensor) -> Tensor:
    """Of fairseq's adaptive softmax over features (B, T, C) → (B, T), by the chain rule: the head
    chooses a word or a cluster, the tail of that cluster a word."""
    rows = [x.flatten(0, 1) for x in (clean.detach(), attacked)]
    heads = [softmax.head(x) for x in rows]
    p = at_least_float(heads[0]).detach().softmax(dim=-1)
    kl = categorical_kl(*heads)
    for cluster, tail in enumerate(softmax.tail, start=softmax.cutoff[0]):
        kl = kl + p[:, cluster] * categorical_kl(*(tail(x) for x in rows))
    return kl.view(clean.shape[:2])


@dataclass(frozen=True)
class Predictions:
    """What the task's criterion ran: the model, the batch, and the outputs of every forward."""

    model: nn.Module
    sample: dict[str, Any]
    criterion: Any  # the task's own
    clean: Sequence[Tensor]
    attacked: Sequence[Tensor]


def of_tokens(seen: Predictions) -> Tensor:
    """Translation and language models: over target tokens."""
    (clean,), (attacked,) = seen.clean, seen.attacked  # (B, T, V), or features where adaptive
    adaptive = getattr(seen.model.decoder, "adaptive_softmax", None)
    if adaptive is None:
        kl = categorical_kl(clean, attacked)
    else:
        kl = adaptive_kl(adaptive, clean, attacked)
    target = seen.model.get_targets(seen.sample, [clean])
    counted = target.ne(seen.criterion.padding_idx)
    counted[:, : getattr(seen.criterion, "ignore_prefix_size", 0)] = False
    return kl.masked_fill(~counted, 0.0).sum()


def of_decisions(seen: Predictions) -> Tensor:
    """Masked, replaced or tagged tokens, sentences, options; of a regression the squared
    difference."""
    clean, attacked = (
        decisions(seen.criterion, seen.sample, outputs) for outputs in (seen.clean, seen.attacked)
    )
    if is_regression(seen.criterion):
        return squared_difference(clean.detach(), attacked)
    return categorical_kl(clean, attacked).sum()


def divergence(seen: Predictions) -> Tensor:
    """Over a vocabulary without a copy of the logits that count, everywhere else with one."""
    return of_tokens(seen) if isinstance(seen.criterion, OVER_TOKENS) else of_decisions(seen)
