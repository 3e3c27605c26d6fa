"""``--attention layerdrop``: skips the attention of whole layers at random (Wu et al. 2021, §7.1).

A skipped layer attends uniformly to its valid keys (Eq. 4); the rest of the layer is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.context import AttentionContext
from ..core.errors import SettingError
from ..core.method import AttentionMethod, register_method
from ..core.settings import Settings, setting


@dataclass(frozen=True)
class LayerDrop(Settings):
    """Settings of skipped attention layers."""

    p: float = setting(
        0.2,
        "probability to skip the attention of a layer, which then attends uniformly (Eq. 4); can "
        "be combined with any --attention; in the archs *_layerdrop the default is 0.2",
        flag="attention_layerdrop",
        flag_default=0.0,
    )

    def check(self) -> None:
        if not 0 <= self.p <= 1:
            raise SettingError(self, "p", f"must be between 0 and 1, not {self.p}")


@register_method("layerdrop", settings=LayerDrop)
class LayerDropAttention(AttentionMethod):
    """Skips attention layers at random."""

    settings: LayerDrop
    plain_at_test = True
    stateless = True
    switch = "p"
    arch_defaults = {"attention_layerdrop": 0.2}

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """logits (B, H, T, S), or zeros if the layer is skipped."""
        if not self.stochastic or self.settings.p == 0:
            return logits
        # masked_fill instead of new zeros gives W_Q and W_K a gradient of 0 instead of none:
        # DistributedDataParallel waits for a gradient of every parameter.
        skipped = torch.rand((1, 1, 1, 1), device=logits.device) < self.settings.p
        return logits.masked_fill(skipped, 0.0)
