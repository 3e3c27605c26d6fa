"""Masks on self-attention, and the naive ones of Wu et al. 2022, Table 3: Bernoulli, scheduled and
magnitude.

Eq. 4: softmax(QKᵀ/√d + μ) with μ ∈ {0, −∞}, one for all heads, in the half of a doubled batch that
is under attack (``--criterion asa``). Elsewhere, at test time above all, attention is plain.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.doubling import nobody_doubles
from fairseq_stochattn.attention.method import (
    AttentionMethod,
    Place,
    parse_methods,
    register_method,
)
from fairseq_stochattn.attention.schedules import parse_schedules
from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.gradients import mask_last_rows

logger = logging.getLogger(__name__)


def masked_cells(score: Tensor, valid: Tensor) -> Tensor:
    """Where a score is positive, (B, 1, T, S): valid cells only, and never all of a row.

    What stays of a row that would lose every valid cell is the one of lowest score.
    """
    lowest = score.masked_fill(~valid, torch.inf).amin(dim=-1, keepdim=True)
    return (score > lowest.clamp(min=0)) & valid


class Masking(AttentionMethod):
    """Base of what masks cells under attack: a subclass says by a score which."""

    sites = ("encoder", "decoder")  # self-attention
    plain_at_test = True
    _warned = False

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        if self.name != parse_methods(config.attention)[-1]:
            raise UsageError(f"--attention: {self.name} masks what others made: name it last")
        self.own_share = f"masked_share_{place.site}_{place.layer}"

    @abstractmethod
    def score(self, logits: Tensor, cells: Cells, valid: Tensor) -> Tensor:
        """(B, 1, T, S), in fp32 or better: a cell is masked where it is positive."""

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        """logits (B, H, T, S), masked in the second half of a doubled batch."""
        if not self.training:
            return logits
        if not cells.doubled:
            self.rest()
            return logits
        logits, cells = at_least_float(logits), cells.attacked()
        valid, count = self.valid_cells(cells)
        score = self.score(logits[-valid.size(0) :], cells, valid)
        masked = masked_cells(score.detach(), valid)
        self.leave(self.own_share, masked.sum(), count=count)
        return mask_last_rows(logits, self.mask(masked, score, valid, count), cells.blocked)

    def mask(self, masked: Tensor, score: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        """The mask (B, 1, T, S) as the attention gets it; what it costs is left behind."""
        self.leave("masked_share", masked.sum(), count=count)
        return masked

    def rest(self) -> None:
        """In training, but there is nothing to attack."""
        if nobody_doubles() and not Masking._warned:
            Masking._warned = True
            logger.warning("%s attention masks nothing without --criterion asa", self.name)

    @staticmethod
    def valid_cells(cells: Cells) -> tuple[Tensor, Tensor]:
        """(B, 1, T, S) and their number, made once for all layers of a stack."""
        state = cells.stack.state
        if "masking" not in state:
            state["masking"] = cells.valid, cells.valid.sum()
        return state["masking"]


def checked_share(share: float, flag: str) -> float:
    if not 0 <= share < 1:
        raise UsageError(f"{flag} must be a share of the cells, from 0 to below 1")
    return share


@dataclass
class BernoulliConfig(FairseqDataclass):
    bernoulli_share: float = field(
        default=0.1, metadata={"help": "probability that a cell is masked (paper: 0.05, 0.1)"}
    )


@register_method("bernoulli")
class BernoulliMasking(Masking):
    """Masks cells at random."""

    Config = BernoulliConfig

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        self.share = checked_share(config.bernoulli_share, "--bernoulli-share")

    def score(self, logits: Tensor, cells: Cells, valid: Tensor) -> Tensor:
        return self.share - torch.rand(valid.shape, device=valid.device)


@dataclass
class ScheduledConfig(FairseqDataclass):
    scheduled_shares: str = field(
        default="0:0.2,2000:0.1",
        metadata={
            "help": "probability that a cell is masked over updates, linear between points, such "
            "as the masked_share that a run of asa has logged; or one of these a layer, joined by /"
        },
    )


@register_method("scheduled")
class ScheduledMasking(Masking):
    """Masks cells at random, as many as a schedule over the updates says."""

    Config = ScheduledConfig

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        schedules = parse_schedules("--scheduled-shares", config.scheduled_shares, place.num_layers)
        self.share = schedules[place.layer]

    def score(self, logits: Tensor, cells: Cells, valid: Tensor) -> Tensor:
        return self.share(self.num_updates) - torch.rand(valid.shape, device=valid.device)


@dataclass
class MagnitudeConfig(FairseqDataclass):
    magnitude_share: float = field(
        default=0.1, metadata={"help": "share of a sentence's cells that is masked, the largest"}
    )


@register_method("magnitude")
class MagnitudeMasking(Masking):
    """Masks the cells of a sentence that get most attention, on average over the heads."""

    Config = MagnitudeConfig

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        self.share = checked_share(config.magnitude_share, "--magnitude-share")

    def score(self, logits: Tensor, cells: Cells, valid: Tensor) -> Tensor:
        weights = cells.mask(logits.detach()).softmax(dim=-1).mean(dim=1, keepdim=True)
        weights = weights.masked_fill(~valid, -1.0)
        ordered = weights.flatten(1).sort(dim=1, descending=True).values  # (B, T·S)
        number = (self.share * valid.flatten(1).sum(dim=1, keepdim=True)).floor().long()
        return weights - ordered.gather(1, number)[..., None, None]
