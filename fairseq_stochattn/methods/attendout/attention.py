"""AttendOut (Wu et al. 2021): attention whose (query, key) pairs a generator drops.

Scores dropout, Eq. 3: softmax(QKᵀ/√d + M) with M = −inf at dropped pairs; a row in which all keys
are dropped is uniform over its valid keys, Eq. 4. Weights dropout, Eq. 2: softmax(QKᵀ/√d) ⊙ M. The
generator learns in the training loop of two players; at test time the attention is plain.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.context import AttentionContext
from ...core.errors import SettingError
from ...core.method import AttentionMethod, LayerInfo, register_method
from ...core.settings import Settings, setting
from ...core.stack import AttentionStack
from .generator import Actions, DropoutGenerator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttendOut(Settings):
    """Settings of the learned attention dropout."""

    on: Literal["scores", "weights"] = setting(
        "scores", "what is dropped: scores before the softmax (Eq. 3) or weights (Eq. 2)"
    )
    actions: Literal["pair", "layer"] = setting(
        "pair",
        "what the generator decides: to drop each (query, key) pair (pair, as in the paper), or "
        "the share of pairs that are dropped at random in each layer (layer)",
    )
    dim: int = setting(
        64,
        "width of the generator and its one head; 0 means a third of the model's, as in the paper",
    )
    embedding: Literal["own", "model"] = setting(
        "own",
        "word embedding of the generator: its own, learned one, or a constant copy of the model's, "
        "taken before the first update and projected to the generator's width",
    )
    drop: float = setting(0.1, "probability of dropping a (query, key) pair before learning starts")

    def check(self) -> None:
        if not 0 < self.drop < 1:
            raise SettingError(self, "drop", f"must be above 0 and below 1, not {self.drop}")
        if self.dim < 4 and self.dim != 0:
            raise SettingError(self, "dim", "must be at least 4, or 0 for a third of the model's")


def drop_scores(logits: Tensor, drop: Tensor) -> Tensor:
    """Eq. 3. M is the lowest finite number: if a whole row is dropped, it is uniform (Eq. 4)."""
    return logits.masked_fill(drop, torch.finfo(logits.dtype).min)


def drop_weights(weights: Tensor, drop: Tensor) -> Tensor:
    """Eq. 2; the rows then add up to less than 1."""
    return weights.masked_fill(drop, 0.0)


@register_method("attendout", settings=AttendOut)
class AttendOutAttention(AttentionMethod):
    """Attention with a learned dropout."""

    sites = ("encoder", "decoder")  # the generator needs the same tokens for queries and keys
    plain_at_test = True
    needs_tokens = True
    on_graphs = False

    def __init__(self, settings: AttendOut, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.on_weights = settings.on == "weights"
        self.index = info.stack.layers.index(info.layer)
        self.measure = f"drop_{info.site}_{info.layer}"

    @classmethod
    def build_shared(cls, settings: AttendOut, stack: AttentionStack) -> nn.Module:
        width = stack.num_heads * stack.head_dim
        return DropoutGenerator(
            stack.vocabulary,
            stack.layers,
            settings.dim or max(4, width // 3),
            settings.drop,
            causal=stack.site == "decoder",
            by_layer=settings.actions == "layer",
            copied_width=width if settings.embedding == "model" else None,
        )

    @classmethod
    def drops_scores(cls, settings: AttendOut) -> bool:
        return settings.on == "scores"

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S): in training, with dropped scores."""
        if not self.stochastic:
            return logits
        actions = self.actions(context)
        if self.training:
            self.add_measure(self.measure, actions.mean[self.index], actions.count)
        return logits if self.on_weights else drop_scores(logits, self.dropped(context))

    def reweigh(self, weights: Tensor, context: AttentionContext) -> Tensor:
        if not (self.on_weights and self.stochastic):
            return weights
        return drop_weights(weights, self.dropped(context))

    def actions(self, context: AttentionContext) -> Actions:
        """What the generator drops, drawn once per forward pass for all layers of the stack."""
        state = context.stack.state
        if self.name not in state:
            generator: DropoutGenerator = context.stack.shared[self.name]
            if self.training and not generator.in_training_loop:
                generator.in_training_loop = True  # warn once
                logger.warning("the generator of attendout learns only with --criterion attendout")
            state[self.name] = generator.act(context.stack.tokens)
        return state[self.name]

    def dropped(self, context: AttentionContext) -> Tensor:
        """(B, 1, T, S): the rows of these queries; cached decoding has only the last one."""
        queries = context.q.size(2)
        return self.actions(context).drop[self.index, :, None, -queries:]
