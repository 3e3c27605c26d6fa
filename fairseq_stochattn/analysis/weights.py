"""Samples of the attention weights of a sentence: their mean and how widely they spread.

Zhang et al. 2021 (BABN), Fig. 3: the mean of every query-key pair, and std/mean as its uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_stochattn.analysis.sentences import Sentence
from fairseq_stochattn.attention.recurrent import StochasticAttentionLayer
from fairseq_stochattn.attention.watching import Heads, watching
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.heads import HeadGroup, find_heads
from fairseq_stochattn.sampling import is_random, sampled_attention


@dataclass(frozen=True)
class WeightSamples:
    """K samples of what one attention module does to one sentence."""

    weights: Tensor  # (K, H, T, S), rows add up to 1
    log_unnormalised: Tensor | None  # (K, H, T, S): log S before it; None without a method

    def mean(self) -> Tensor:
        """(H, T, S)."""
        return self.weights.mean(dim=0)

    def std(self) -> Tensor:
        """(H, T, S): sample standard deviation; of a single sample 0."""
        if len(self.weights) == 1:
            return torch.zeros_like(self.weights[0])
        return self.weights.std(dim=0)

    def ratio(self, unnormalised: bool = False) -> Tensor:
        """std/mean, (H, T, S), of the weights or of S; NaN where the query never sees the key.

        S is the positive variable that the weights are normalised from. Its std/mean is what the
        paper draws: in a first layer of fixed width (bam) the same in every cell.
        """
        seen = self.mean() > 0
        found = self.std() / self.mean()
        if unnormalised:
            if self.log_unnormalised is None:
                raise UsageError("--unnormalised: this attention has no method, S is not sampled")
            # A factor common to all samples cancels: the largest keeps them from overflowing.
            s = (self.log_unnormalised - self.log_unnormalised.amax(dim=0)).exp()
            found = s.std(dim=0) / s.mean(dim=0)
        return found.masked_fill(~seen, torch.nan)

    def averaged(self) -> WeightSamples:
        """The mean over the heads as one head."""
        return WeightSamples(self.weights.mean(dim=1, keepdim=True), None)


def find_attention(model: nn.Module) -> list[HeadGroup]:
    """Every attention of queries over keys; the LSTM's is a single head."""
    groups = [group for group in find_heads(model) if hasattr(group.module, "attention_methods")]
    recurrent = [
        HeadGroup(name, module, "cross", 0, 1, {})
        for name, module in model.named_modules()
        if isinstance(module, StochasticAttentionLayer)
    ]
    if not groups and not recurrent:
        raise UsageError("this model has no attention of queries over keys to draw")
    return groups + recurrent


@torch.no_grad()
def sample_weights(
    model: nn.Module, sentence: Sentence, groups: Sequence[HeadGroup], samples: int
) -> list[WeightSamples]:
    """For every group K samples, all in one pass over K copies of the sentence.

    Attention that is not random has one sample: its weights.
    """
    random = is_random(model)
    seen: list[list[Tensor]] = [[] for _ in groups]
    logs: list[list[Tensor]] = [[] for _ in groups]
    with ExitStack() as watches:
        for group, weights, log_s in zip(groups, seen, logs, strict=True):

            def see(heads: Heads, weights: list[Tensor] = weights) -> None:
                weights.append(heads.weights)

            def after(_: nn.Module, __: object, out: Tensor, log_s: list[Tensor] = log_s) -> None:
                log_s.append(out)

            watches.enter_context(watching([group.module], see))
            for method in list(group.module.attention_methods.values())[-1:]:
                watches.callback(method.register_forward_hook(after).remove)
        watches.enter_context(sampled_attention([model]) if random else nullcontext())
        model(**sentence.copies(samples if random else 1))
    return [WeightSamples(_joined(x), _joined(y)) for x, y in zip(seen, logs, strict=True)]


def _joined(calls: Sequence[Tensor]) -> Tensor | None:
    """The LSTM attends once a target token: (K, H, 1, S) each; all others once, (K, H, T, S)."""
    return torch.cat(list(calls), dim=2).double().cpu() if calls else None
