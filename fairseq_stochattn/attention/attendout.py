"""AttendOut (Wu et al. 2021): the attention of the attacker, whose cells a generator drops.

Scores dropout, Eq. 3: softmax(QKᵀ/√d + M) with M = −inf in dropped cells; a row of which nothing is
left is uniform over its valid keys, Eq. 4. Weights dropout, Eq. 2: softmax(QKᵀ/√d) ⊙ M. The game
that teaches the generator is the criterion's; at test time the attention is plain.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.dropout_maker import Actions, DropoutMaker
from fairseq_stochattn.attention.method import AttentionMethod, Place, register_method
from fairseq_stochattn.attention.stack import AttentionStack, select_layers
from fairseq_stochattn.errors import UsageError

logger = logging.getLogger(__name__)


@dataclass
class AttendOutConfig(FairseqDataclass):
    attendout_on: ChoiceEnum(["scores", "weights"]) = field(
        default="scores",
        metadata={"help": "what is dropped: scores before the softmax (Eq. 3) or weights (Eq. 2)"},
    )
    attendout_dim: int = field(
        default=64, metadata={"help": "width of the generator, its embedding and its one head"}
    )
    attendout_drop: float = field(
        default=0.5,
        metadata={"help": "probability around which cells are dropped before anything is learnt"},
    )


def drop_scores(logits: Tensor, drop: Tensor) -> Tensor:
    """Eq. 3. M is the lowest finite number: where all is dropped, all is alike, which is Eq. 4."""
    return logits.masked_fill(drop, torch.finfo(logits.dtype).min)


def drop_weights(weights: Tensor, drop: Tensor) -> Tensor:
    """Eq. 2; the rows then add up to less than 1."""
    return weights.masked_fill(drop, 0.0)


@register_method("attendout")
class AttendOut(AttentionMethod):
    """Attention with a learned dropout."""

    Config = AttendOutConfig
    sites = ("encoder", "decoder")  # the generator reads the tokens behind queries and keys
    plain_at_test = True

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        self.on_weights = str(config.attendout_on) == "weights"
        self.index = chosen_layers(config, place.stack).index(place.layer)
        self.measure = f"drop_{place.site}_{place.layer}"

    @classmethod
    def build_shared(cls, config: Namespace, stack: AttentionStack) -> nn.Module:
        if not 0 < config.attendout_drop < 1:
            raise UsageError(
                f"--attendout-drop must be above 0 and below 1, not {config.attendout_drop}"
            )
        if config.attendout_dim < 4:
            raise UsageError("--attendout-dim must be at least 4")
        return DropoutMaker(
            stack.dictionary,
            chosen_layers(config, stack),
            config.attendout_dim,
            config.attendout_drop,
            causal=stack.site == "decoder",
        )

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        """(B, H, T, S): in training, with dropped scores."""
        if not self.stochastic:
            return logits
        actions = self.actions(cells)
        if self.training:
            self.leave(self.measure, actions.mean[self.index], count=actions.count)
        return logits if self.on_weights else drop_scores(logits, self.dropped(cells))

    def reweigh(self, weights: Tensor, cells: Cells) -> Tensor:
        if not (self.on_weights and self.stochastic):
            return weights
        return drop_weights(weights, self.dropped(cells))

    def actions(self, cells: Cells) -> Actions:
        """Drawn once a forward, for all layers of the stack."""
        state = cells.stack.state
        if self.name not in state:
            maker: DropoutMaker = cells.stack.shared[self.name]
            if self.training and not maker.in_game:
                maker.in_game = True  # said once
                logger.warning("attendout learns with --criterion attendout alone")
            state[self.name] = maker.act(cells.stack.tokens)
        return state[self.name]

    def dropped(self, cells: Cells) -> Tensor:
        """(B, 1, T, S): the rows of these queries; cached decoding asks for the last one only."""
        queries = cells.q.size(2)
        return self.actions(cells).drop[self.index, :, None, -queries:]


def chosen_layers(config: Namespace, stack: AttentionStack) -> list[int]:
    return select_layers(config.attention_layers, stack.num_layers, stack.site)
