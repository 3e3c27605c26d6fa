"""The identity method: plain attention, W = softmax(QKᵀ/√d), through our forward."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.method import AttentionMethod, register_method


@register_method("deterministic")
class Deterministic(AttentionMethod):
    """Returns the logits unchanged: outputs and gradients equal plain fairseq."""

    plain_at_test: ClassVar[bool] = True
    stateless: ClassVar[bool] = True
    passive: ClassVar[bool] = True

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        return logits
