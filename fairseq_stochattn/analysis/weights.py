"""Samples the attention weights for a sentence; computes their mean and standard deviation.

Zhang et al. 2021 (BABN), Fig. 3, plots the mean weight of every (query, key) pair, and std/mean as
its uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.additive_attention import AdditiveAttention
from ..core.errors import InputError
from ..core.head_hooks import HeadOutputs, hook_heads
from ..core.heads import HeadGroup, find_heads
from ..models.lstm_attention import StochasticAttentionLayer
from ..uncertainty.sampling import is_random, sampled_attention
from .sentences import Sentence


@dataclass(frozen=True)
class WeightSamples:
    """K samples of the weights in one attention module for one sentence.

    S is the positive variable that a method samples and that is normalised to the weights.
    """

    weights: Tensor  # (K, H, T, S), each row sums to 1
    log_unnormalised: Tensor | None  # (K, H, T, S): log S; None if no method samples S

    def mean(self) -> Tensor:
        """The mean over the samples, (H, T, S)."""
        return self.weights.mean(dim=0)

    def std(self) -> Tensor:
        """The standard deviation over the samples, (H, T, S), or 0 if there is only one sample."""
        if len(self.weights) == 1:
            return torch.zeros_like(self.weights[0])
        return self.weights.std(dim=0)

    def ratio(self, unnormalised: bool = False) -> Tensor:
        """std/mean of the weights, or of S if ``unnormalised``, (H, T, S).

        It is NaN where the query cannot see the key. The paper plots std/mean of S. With a
        distribution of fixed width (bam), this is the same for all pairs of the first layer.
        """
        visible = self.mean() > 0
        ratio = self.std() / self.mean()
        if unnormalised:
            if self.log_unnormalised is None:
                raise InputError("--unnormalised: this attention has no method that samples S")
            # Division of S by its largest sample prevents an overflow and does not change std/mean.
            s = (self.log_unnormalised - self.log_unnormalised.amax(dim=0)).exp()
            ratio = s.std(dim=0) / s.mean(dim=0)
        return ratio.masked_fill(~visible, torch.nan)

    def averaged(self) -> WeightSamples:
        """The samples of the mean over all heads, in the form of a single head."""
        return WeightSamples(self.weights.mean(dim=1, keepdim=True), None)


def is_pooling(group: HeadGroup) -> bool:
    """Whether each head attends once per sentence, as in the self-attentive classifier."""
    return isinstance(group.module, AdditiveAttention)


def find_attention(model: nn.Module, pooling: bool = False) -> list[HeadGroup]:
    """All modules in which queries attend to keys. The attention of an LSTM has a single head.

    With ``pooling``, also modules whose heads attend once per sentence and have no queries.
    """
    groups = [
        group
        for group in find_heads(model)
        if hasattr(group.module, "attention_methods") or (pooling and is_pooling(group))
    ]
    recurrent = [
        HeadGroup(name, module, "cross", 0, 1, {})
        for name, module in model.named_modules()
        if isinstance(module, StochasticAttentionLayer)
    ]
    if not groups and not recurrent:
        raise InputError("this model has no attention to draw: no queries attend to keys")
    return groups + recurrent


@torch.no_grad()
def sample_weights(
    model: nn.Module, sentence: Sentence, groups: Sequence[HeadGroup], samples: int
) -> list[WeightSamples]:
    """Sample the weights of every group K times, in one pass over K copies of the sentence.

    If the attention is not random, there is one sample.
    """
    random = is_random(model)
    all_weights: list[list[Tensor]] = [[] for _ in groups]
    all_logs: list[list[Tensor]] = [[] for _ in groups]
    with ExitStack() as hooks:
        for group, weights, logs in zip(groups, all_weights, all_logs, strict=True):

            def keep_weights(heads: HeadOutputs, weights: list[Tensor] = weights) -> None:
                weights.append(heads.weights)

            def keep_log(_: nn.Module, __: object, out: Tensor, logs: list[Tensor] = logs) -> None:
                logs.append(out)

            hooks.enter_context(hook_heads([group.module], keep_weights))
            methods = getattr(group.module, "attention_methods", {})
            for method in list(methods.values())[-1:]:
                hooks.callback(method.register_forward_hook(keep_log).remove)
        hooks.enter_context(sampled_attention([model]) if random else nullcontext())
        copies = samples if random else 1
        model(**sentence.copies(copies))
    return [
        WeightSamples(_joined_pairs(_concatenate(weights), copies), _concatenate(logs))
        for weights, logs in zip(all_weights, all_logs, strict=True)
    ]


def _joined_pairs(weights: Tensor, copies: int) -> Tensor:
    """(K, H, T, S); a classifier of pairs has 2K rows, in which the other sentence has weight 0."""
    return weights if len(weights) == copies else weights.unflatten(0, (2, copies)).sum(dim=0)


def _concatenate(calls: Sequence[Tensor]) -> Tensor | None:
    """The outputs of all calls of a module as one tensor (K, H, T, S), or None without calls.

    An LSTM attends once per target token, with outputs (K, H, 1, S). All other models attend once,
    with the output (K, H, T, S).
    """
    return torch.cat(list(calls), dim=2).double().cpu() if calls else None
