"""How far apart the predictions of a clean and an attacked model are: D[p_clean, p_attacked] of Wu
et al. 2022, Eq. 6 and 10, for each kind of task.

p_clean is a constant (virtual adversarial training). Sums over what the task's own loss sums over:
target tokens, masked or tagged tokens, sentences; padding is in none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor, nn

from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.tasks.tagging import IGNORED


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


def bernoulli_kl(clean: Tensor, attacked: Tensor) -> Tensor:
    """KL of two coins, from their logits."""
    clean, attacked = at_least_float(clean).detach(), at_least_float(attacked)
    p = clean.sigmoid()
    heads = F.logsigmoid(clean) - F.logsigmoid(attacked)
    tails = F.logsigmoid(-clean) - F.logsigmoid(-attacked)
    return p * heads + (1 - p) * tails


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

    @property
    def target(self) -> Tensor:
        return self.model.get_targets(self.sample, [self.clean[0]])

    def halves(self) -> tuple[Tensor, Tensor]:
        return self.clean[0], self.attacked[0]


def of_tokens(seen: Predictions) -> Tensor:
    """Translation and language models: over target tokens."""
    clean, attacked = seen.halves()  # (B, T, V), or features for an adaptive softmax
    adaptive = getattr(seen.model.decoder, "adaptive_softmax", None)
    if adaptive is None:
        kl = categorical_kl(clean, attacked)
    else:
        kl = adaptive_kl(adaptive, clean, attacked)
    counted = seen.target.ne(seen.criterion.padding_idx)
    counted[:, : getattr(seen.criterion, "ignore_prefix_size", 0)] = False
    return total(kl, counted)


def of_masked_tokens(seen: Predictions) -> Tensor:
    """Masked language models: over what is masked, (n, V)."""
    kl = categorical_kl(*seen.halves())
    if kl.dim() > 1:  # nothing is masked: fairseq then projects every token
        return total(kl, torch.zeros_like(kl, dtype=torch.bool))
    return kl.sum()


def of_replacements(seen: Predictions) -> Tensor:
    """ELECTRA's discriminator: over real tokens, (B, T)."""
    real = seen.sample["net_input"]["src_tokens"].ne(seen.criterion.padding_idx)
    return total(bernoulli_kl(*seen.halves()), real)


def of_tags(seen: Predictions) -> Tensor:
    """Tagging: over the tokens that have a tag, (B, T, K)."""
    return total(categorical_kl(*seen.halves()), seen.target.ne(IGNORED))


def of_sentences(seen: Predictions) -> Tensor:
    """Classes (B, K), or with regression the squared difference of numbers (B, 1)."""
    clean, attacked = seen.halves()
    if seen.criterion.regression_target:
        return (at_least_float(attacked) - at_least_float(clean).detach()).square().sum()
    return categorical_kl(clean, attacked).sum()


def of_options(seen: Predictions) -> Tensor:
    """Multiple choice: one forward and score (B, 1) an option."""
    return categorical_kl(*(torch.cat(list(x), dim=1) for x in (seen.clean, seen.attacked))).sum()


def total(values: Tensor, counted: Tensor) -> Tensor:
    return values.masked_fill(~counted, 0.0).sum()


# By the criterion that is wrapped.
DIVERGENCES: dict[str, Callable[[Predictions], Tensor]] = {
    "label_smoothed_cross_entropy": of_tokens,
    "cross_entropy": of_tokens,
    "adaptive_loss": of_tokens,
    "masked_lm": of_masked_tokens,
    "electra": of_replacements,
    "sentence_prediction": of_sentences,
    "sentence_ranking": of_options,
    "token_tagging": of_tags,
}
