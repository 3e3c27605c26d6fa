"""``--attention deterministic``: plain attention, W = softmax(QKᵀ/√d), through our forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.context import AttentionContext
from ..core.method import AttentionMethod, register_method
from ..core.settings import Settings


@dataclass(frozen=True)
class Deterministic(Settings):
    """The identity method has no settings."""


@register_method("deterministic", settings=Deterministic)
class DeterministicAttention(AttentionMethod):
    """Returns the logits unchanged: outputs and gradients equal those of the plain model."""

    plain_at_test = True
    stateless = True
    passive = True

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        return logits
