"""Adversarial and random masks on self-attention (Wu et al. 2022, Eq. 4).

softmax(QKᵀ/√d + μ) with μ ∈ {0, −∞}, one mask for all heads, in the adversarial half of a paired
batch (``--criterion asa``). Everywhere else, at test time in particular, attention is plain.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from .context import AttentionContext
from .distributions import at_least_float
from .errors import InputError, SettingError
from .method import AttentionMethod, LayerInfo
from .paired_batch import no_pairing
from .schedule import Schedule, parse_schedules
from .settings import Settings

logger = logging.getLogger(__name__)


def check_share(settings: Settings, name: str = "share") -> None:
    """Raise ``SettingError`` unless the setting is a share of the (query, key) pairs."""
    if not 0 <= getattr(settings, name) < 1:
        raise SettingError(settings, name, "must be a share of the pairs, from 0 to below 1")


def schedule_of_layer(settings: Settings, name: str, info: LayerInfo) -> Schedule:
    """The schedule that a setting gives for one layer."""
    try:
        return parse_schedules(getattr(settings, name), info.num_layers)[info.layer]
    except InputError as error:
        raise SettingError(settings, name, str(error)) from None


def random_scores(shape: tuple[int, ...], p: float | Tensor, device: torch.device) -> Tensor:
    """p − u with u ~ U(0, 1): positive with probability p."""
    return p - torch.rand(shape, device=device)


def masked_pairs(score: Tensor, valid: Tensor) -> Tensor:
    """(B, 1, T, S): True where the score is positive, for valid pairs only, never a whole row.

    In a row where every valid pair would be masked, the pair of lowest score stays.
    """
    lowest = score.masked_fill(~valid, torch.inf).amin(dim=-1, keepdim=True)
    return (score > lowest.clamp(min=0)) & valid


class MaskingMethod(AttentionMethod):
    """Base class of methods that mask (query, key) pairs; a subclass scores the pairs."""

    on_graphs = False
    sites = ("encoder", "decoder")  # self-attention
    plain_at_test = True
    must_be_last = True
    _warned = False
    probe: MaskProbe | None = None  # set by a meter while it measures

    def __init__(self, settings: Settings, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.layer_measure = f"masked_share_{info.site}_{info.layer}"

    @abstractmethod
    def score(self, logits: Tensor, context: AttentionContext, valid: Tensor) -> Tensor:
        """(B, 1, T, S), in fp32 or better: a pair is masked where its score is positive."""

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """logits (B, H, T, S), masked in the second half of a paired batch."""
        if not self.training and self.probe is None:
            return logits
        if not context.paired:
            self.skip()
            return logits
        logits, context = at_least_float(logits), context.adversarial_half()
        valid, count = self.valid_pairs(context)
        if self.probe is not None:
            masked = self.probe.masks(self, logits[-valid.size(0) :], context, valid, count)
            return mask_last_rows(logits, masked, context.blocked)
        score = self.score(logits[-valid.size(0) :], context, valid)
        masked = masked_pairs(score.detach(), valid)
        self.add_measure(self.layer_measure, masked.sum(), count)
        mask = self.mask(masked, score, valid, count)
        return mask_last_rows(logits, mask, context.blocked)

    def mask(self, masked: Tensor, score: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        """The mask (B, 1, T, S) that the attention receives; logs or penalises the masked share."""
        self.add_measure("masked_share", masked.sum(), count)
        return masked

    def skip(self) -> None:
        """Called in training when the batch has no adversarial half."""
        if no_pairing() and not MaskingMethod._warned:
            MaskingMethod._warned = True
            logger.warning("%s attention masks nothing without --criterion asa", self.name)

    @staticmethod
    def valid_pairs(context: AttentionContext) -> tuple[Tensor, Tensor]:
        """The valid pairs (B, 1, T, S) and their number, computed once per stack."""
        state = context.stack.state
        if "masking" not in state:
            state["masking"] = context.valid, context.num_valid
        return state["masking"]


class MaskProbe:
    """The masks of one layer while a meter measures: the method's own, or random ones.

    Random masks have the share of valid pairs that the method's own masks had before, in all
    forward passes together.
    """

    def __init__(self) -> None:
        self.random = False
        self._masked: Tensor | float = 0.0
        self._count: Tensor | float = 0.0

    @property
    def share(self) -> Tensor:
        """The share of valid pairs that the method's own masks hid, a scalar."""
        return torch.as_tensor(self._masked) / torch.as_tensor(self._count).clamp(min=1)

    def masks(
        self,
        method: MaskingMethod,
        logits: Tensor,
        context: AttentionContext,
        valid: Tensor,
        count: Tensor,
    ) -> Tensor:
        """The masked pairs (B, 1, T, S), True where masked."""
        if self.random:
            score = random_scores(valid.shape, self.share, valid.device)
            return masked_pairs(score, valid)
        masked = masked_pairs(method.score(logits, context, valid), valid)
        self._masked, self._count = self._masked + masked.sum(), self._count + count
        return masked


class RandomMasking(MaskingMethod):
    """Masks pairs at random, with a probability that may change over updates."""

    share: Schedule

    def score(self, logits: Tensor, context: AttentionContext, valid: Tensor) -> Tensor:
        return random_scores(valid.shape, self.share(self.num_updates), valid.device)


# Close enough to −∞ beside the kept keys of a row (e^−25 ≈ 1e-11), small enough to divide by.
_MASKED = 25.0


class _MaskLastRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, m: Tensor, blocked: Tensor | None) -> Tensor:
        ctx.mark_dirty(logits)
        rows, masked = logits[-m.size(0) :], m.bool()
        kept = rows.masked_fill(masked if blocked is None else masked | blocked, -torch.inf)
        total = kept.logsumexp(dim=-1, keepdim=True)  # (B, H, T, 1)
        if ctx.needs_input_grad[1]:
            # The softmax passes back W_s·r for every pair, with r = ∂L/∂W_s − Σ W ∂L/∂W.
            odds = rows - total
            if_masked = odds.sigmoid().mul_(math.exp(_MASKED))
            if_kept = odds.exp().neg_().add_(1).clamp_(min=1e-3).reciprocal_()
            ctx.save_for_backward(torch.where(masked, if_masked, if_kept))
        rows.copy_(torch.where(masked, total - _MASKED, rows))
        return logits

    @staticmethod
    def backward(ctx: Any, grad_logits: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # Masked logits already receive a gradient of nearly zero.
        if not ctx.needs_input_grad[1]:
            return grad_logits, None, None
        (factor,) = ctx.saved_tensors
        rows = grad_logits[-factor.size(0) :]
        return grad_logits, -(rows * factor).sum(dim=1, keepdim=True), None


def mask_last_rows(logits: Tensor, m: Tensor, blocked: Tensor | None = None) -> Tensor:
    """Mask the last B rows of logits (N, H, T, S) in place where m (B, 1, T, S) is 1.

    The logits are fp32 or better; ``blocked`` pairs have no weight in any case.

    The gradient of m is that of the line between the attention weights with and without a pair.
    For a masked pair s, which would have the weight p, ∂W/∂m_s = −p(δ_s − W); for a kept pair it is
    −W_s/(1 − W_s)·(δ_s − W). Through the softmax alone, masked pairs would receive no gradient.
    """
    return _MaskLastRows.apply(logits, m, blocked)
