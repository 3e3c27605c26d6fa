"""The simple relatives of AttendOut (Wu et al. 2021, §7), which learn nothing.

``cell_dropout``: Bernoulli masks whose probability is piece-wise linear in the updates, for each
layer (§7.2). ``layerdrop``: whole attention layers are skipped, as Eq. 4 says: every row is uniform
over its valid keys, while the rest of the layer stays (Attn.LayerDrop, §7.1).
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_stochattn.attention.attendout import drop_scores, drop_weights
from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.method import AttentionMethod, Place, register_method
from fairseq_stochattn.attention.schedules import parse_schedules
from fairseq_stochattn.errors import UsageError


@dataclass
class CellDropoutConfig(FairseqDataclass):
    cell_dropout: Optional[str] = field(
        default=None,
        metadata={
            "help": "probability to drop a (query, key) cell, on top of any --attention: 0.1, or "
            "over updates 0:0.6,5000:0.2, or one of these a layer, joined by /; the archs "
            "*_cell_dropout have 0.1"
        },
    )
    cell_dropout_on: ChoiceEnum(["scores", "weights"]) = field(
        default="scores",
        metadata={
            "help": "scores before the softmax (Eq. 3), or weights behind it (Eq. 2, scaled by "
            "1/(1−p), as --attention-dropout does)"
        },
    )
    cell_dropout_per_head: bool = field(
        default=False,
        metadata={"help": "each head has a mask of its own; else one for all, as attendout has"},
    )


@register_method("cell_dropout")
class CellDropout(AttentionMethod):
    """Random cells dropped, by a schedule."""

    Config = CellDropoutConfig
    plain_at_test = True
    stateless = True
    arch_defaults = {"cell_dropout": "0.1"}

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        if config.cell_dropout is None:
            raise UsageError("--attention cell_dropout needs --cell-dropout, e.g. 0.1")
        self.schedule = parse_schedules("--cell-dropout", config.cell_dropout, place.num_layers)[
            place.layer
        ]
        self.on_weights = str(config.cell_dropout_on) == "weights"
        self.per_head = config.cell_dropout_per_head

    @classmethod
    def asked_for(cls, config: Namespace) -> bool:
        return getattr(config, "cell_dropout", None) is not None

    @property
    def p(self) -> float:
        return self.schedule(self.num_updates) if self.stochastic else 0.0

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        if self.on_weights or self.p == 0:
            return logits
        return drop_scores(logits, self.draw(logits))

    def reweigh(self, weights: Tensor, cells: Cells) -> Tensor:
        if not self.on_weights or self.p == 0:
            return weights
        return drop_weights(weights, self.draw(weights)) / (1 - self.p)

    def draw(self, like: Tensor) -> Tensor:
        """(B, H or 1, T, S): True where a cell is dropped."""
        batch, heads, queries, keys = like.shape
        shape = (batch, heads if self.per_head else 1, queries, keys)
        return torch.rand(shape, device=like.device) < self.p


@dataclass
class LayerDropConfig(FairseqDataclass):
    attention_layerdrop: float = field(
        default=0.0,
        metadata={
            "help": "probability to skip the attention of a layer, on top of any --attention: it "
            "is uniform then (Eq. 4); the archs *_layerdrop have 0.2"
        },
    )


@register_method("layerdrop")
class AttentionLayerDrop(AttentionMethod):
    """Attention layers skipped at random."""

    Config = LayerDropConfig
    plain_at_test = True
    stateless = True
    arch_defaults = {"attention_layerdrop": 0.2}

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        self.p = config.attention_layerdrop
        if not 0 <= self.p <= 1:
            raise UsageError(f"--attention-layerdrop must be between 0 and 1, not {self.p}")

    @classmethod
    def asked_for(cls, config: Namespace) -> bool:
        return getattr(config, "attention_layerdrop", 0.0) > 0

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        if not self.stochastic or self.p == 0:
            return logits
        # Filled rather than replaced: W_Q and W_K then have a gradient, 0, which distributed
        # training waits for.
        skipped = torch.rand((1, 1, 1, 1), device=logits.device) < self.p
        return logits.masked_fill(skipped, 0.0)
