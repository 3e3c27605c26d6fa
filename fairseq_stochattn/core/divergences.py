"""Divergences between two predictions: KL for logits, squared differences for values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .distributions import at_least_float


class _CategoricalKl(torch.autograd.Function):
    """KL(p_clean ‖ p_adversarial) from logits, (…, K) → (…), without gradient for ``clean``.

    This function stores two tensors of the size of the logits. Autograd would store four.
    """

    @staticmethod
    def forward(ctx: Any, clean: Tensor, adversarial: Tensor) -> Tensor:
        log_p, log_q = clean.log_softmax(dim=-1), adversarial.log_softmax(dim=-1)
        p = log_p.exp()
        ctx.save_for_backward(p, log_q)
        return torch.linalg.vecdot(p, log_p.sub_(log_q))

    @staticmethod
    def backward(ctx: Any, grad_kl: Tensor) -> tuple[None, Tensor]:
        p, log_q = ctx.saved_tensors
        return None, log_q.exp().sub_(p).mul_(grad_kl.unsqueeze(-1))


def categorical_kl(clean: Tensor, adversarial: Tensor) -> Tensor:
    """KL(p_clean ‖ p_adversarial) from logits or log-probabilities, (…, K) → (…).

    ``clean`` receives no gradient (virtual adversarial training).
    """
    return _CategoricalKl.apply(at_least_float(clean).detach(), at_least_float(adversarial))


def adaptive_kl(softmax: nn.Module, clean: Tensor, adversarial: Tensor) -> Tensor:
    """``categorical_kl`` between the predictions of an adaptive softmax from features.

    Features (B, T, C) → (B, T). The head predicts a word or a cluster, and the tail of the cluster
    predicts the word in it; the chain rule adds the KL of both. ``softmax`` has the attributes
    ``head``, ``tail`` and ``cutoff`` of fairseq's ``AdaptiveSoftmax``.
    """
    rows = [x.flatten(0, 1) for x in (clean.detach(), adversarial)]
    heads = [softmax.head(x) for x in rows]
    p = at_least_float(heads[0]).detach().softmax(dim=-1)
    kl = categorical_kl(*heads)
    for cluster, tail in enumerate(softmax.tail, start=softmax.cutoff[0]):
        kl = kl + p[:, cluster] * categorical_kl(*(tail(x) for x in rows))
    return kl.view(clean.shape[:2])


def symmetric_kl(logits: Tensor, others: Tensor) -> Tensor:
    """The sum over all rows of KL(p ‖ q) + KL(q ‖ p) = Σ (p − q)(log p − log q), a scalar.

    p and q are the softmax of ``logits`` and of ``others``.
    """
    log_p, log_q = (at_least_float(x).log_softmax(dim=-1) for x in (logits, others))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()


def squared_difference(values: Tensor, others: Tensor) -> Tensor:
    """The sum of (a − b)² over all entries, computed in fp32 or fp64."""
    return (at_least_float(values) - at_least_float(others)).square().sum()
