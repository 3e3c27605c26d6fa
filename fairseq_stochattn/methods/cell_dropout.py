"""``--attention cell_dropout``: random dropout of (query, key) pairs with a scheduled probability.

It is a simple relative of AttendOut (Wu et al. 2021, §7.2) without learned parameters: the
probability of a layer is piecewise linear in the number of updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.context import AttentionContext
from ..core.masking import random_scores, schedule_of_layer
from ..core.method import AttentionMethod, LayerInfo, register_method
from ..core.settings import Settings, setting
from .attendout.attention import drop_scores, drop_weights


@dataclass(frozen=True)
class CellDropout(Settings):
    """Settings of the scheduled dropout of (query, key) pairs."""

    p: str = setting(
        "0.1",
        "probability to drop a (query, key) pair: a number such as 0.1, a schedule of "
        "update:probability points such as 0:0.6,5000:0.2 (linear in between), or one of these per "
        "layer, joined by /; can be combined with any --attention; in the archs *_cell_dropout the "
        "default is 0.1",
        flag="cell_dropout",
        flag_default=None,
    )
    on: Literal["scores", "weights"] = setting(
        "scores",
        "what is dropped: scores before the softmax (Eq. 3), or weights after it (Eq. 2, scaled by "
        "1/(1−p) as --attention-dropout does)",
    )
    per_head: bool = setting(
        False, "draw one mask per head; otherwise all heads share one mask, as in attendout"
    )


@register_method("cell_dropout", settings=CellDropout)
class CellDropoutAttention(AttentionMethod):
    """Drops (query, key) pairs at random, with a scheduled probability."""

    plain_at_test = True
    stateless = True
    switch = "p"
    arch_defaults = {"cell_dropout": "0.1"}

    def __init__(self, settings: CellDropout, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.schedule = schedule_of_layer(settings, "p", info)
        self.on_weights = settings.on == "weights"
        self.per_head = settings.per_head

    @property
    def p(self) -> float:
        """The probability of this update; 0 at test time."""
        return self.schedule(self.num_updates) if self.stochastic else 0.0

    @classmethod
    def drops_scores(cls, settings: CellDropout) -> bool:
        return settings.on == "scores"

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        if self.on_weights or self.p == 0:
            return logits
        return drop_scores(logits, self.draw(logits))

    def reweigh(self, weights: Tensor, context: AttentionContext) -> Tensor:
        if not self.on_weights or self.p == 0:
            return weights
        return drop_weights(weights, self.draw(weights)) / (1 - self.p)

    def draw(self, like: Tensor) -> Tensor:
        """(B, H or 1, T, S): True where a pair is dropped."""
        batch, heads, queries, keys = like.shape
        shape = (batch, heads if self.per_head else 1, queries, keys)
        return random_scores(shape, self.p, like.device) > 0
