"""Divergences between two predictions: KL for logits, squared differences for values."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Divergence:
    """D[p_clean, p_adversarial] between predictions, with one number per prediction.

    KL(p_clean ‖ p_adversarial), or ``symmetric`` the sum of both directions. The clean predictions
    are constants (virtual adversarial training) unless ``clean_gradient``.
    """

    symmetric: bool = False
    clean_gradient: bool = False

    def __call__(self, clean: Tensor, adversarial: Tensor) -> Tensor:
        """From logits or log-probabilities, (…, K) → (…)."""
        if not (self.symmetric or self.clean_gradient):
            return categorical_kl(clean, adversarial)
        log_p, log_q = (at_least_float(x).log_softmax(-1) for x in (clean, adversarial))
        if not self.clean_gradient:
            log_p = log_p.detach()
        p = log_p.exp() - log_q.exp() if self.symmetric else log_p.exp()
        return (p * (log_p - log_q)).sum(dim=-1)

    def of_values(self, clean: Tensor, adversarial: Tensor) -> Tensor:
        """The sum of squared differences, for regression."""
        return squared_difference(clean if self.clean_gradient else clean.detach(), adversarial)

    def adaptive(self, softmax: nn.Module, clean: Tensor, adversarial: Tensor) -> Tensor:
        """Between the predictions of an adaptive softmax, from features (B, T, C) → (B, T).

        The head predicts a word or a cluster, and the tail of the cluster predicts the word in it;
        the chain rule adds the divergences of both. ``softmax`` has the attributes ``head``,
        ``tail`` and ``cutoff`` of fairseq's ``AdaptiveSoftmax``.
        """
        p, q = clean.flatten(0, 1), adversarial.flatten(0, 1)
        if not self.clean_gradient:
            p = p.detach()
        total = self._chain(softmax, p, q, clean_first=True)
        if self.symmetric:
            total = total + self._chain(softmax, q, p, clean_first=False)
        return total.view(clean.shape[:2])

    def _chain(self, softmax: nn.Module, p: Tensor, q: Tensor, clean_first: bool) -> Tensor:
        """KL(p ‖ q) of features (N, C) by the chain rule, (N,)."""
        detached = None if self.clean_gradient else 0 if clean_first else 1
        heads = [softmax.head(x) for x in (p, q)]
        log_head = at_least_float(heads[0]).log_softmax(dim=-1)
        head = (log_head.detach() if detached == 0 else log_head).exp()
        kl = _kl_of(heads, detached)
        for cluster, tail in enumerate(softmax.tail, start=softmax.cutoff[0]):
            kl = kl + head[:, cluster] * _kl_of([tail(x) for x in (p, q)], detached)
        return kl


def _kl_of(logits: list[Tensor], detached: int | None) -> Tensor:
    """KL of the first from the second logits, (N, K) → (N,); one of them may be a constant."""
    if detached == 0:
        return categorical_kl(*logits)
    log_p, log_q = (at_least_float(x).log_softmax(dim=-1) for x in logits)
    if detached == 1:
        log_q = log_q.detach()
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def symmetric_kl(logits: Tensor, others: Tensor) -> Tensor:
    """The sum over all rows of KL(p ‖ q) + KL(q ‖ p) = Σ (p − q)(log p − log q), a scalar.

    p and q are the softmax of ``logits`` and of ``others``.
    """
    log_p, log_q = (at_least_float(x).log_softmax(dim=-1) for x in (logits, others))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()


def squared_difference(values: Tensor, others: Tensor) -> Tensor:
    """The sum of (a − b)² over all entries, computed in fp32 or fp64."""
    return (at_least_float(values) - at_least_float(others)).square().sum()
