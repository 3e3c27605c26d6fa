"""A method for tests that uses every part of the protocol of core/method.py.

It adds Gaussian noise to the logits, with a learned scale per head and a factor that all layers of
a stack share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_stochattn.core.context import AttentionContext
from fairseq_stochattn.core.method import AttentionMethod, LayerInfo, register_method
from fairseq_stochattn.core.schedule import ramp
from fairseq_stochattn.core.settings import Settings, setting
from fairseq_stochattn.core.stack import AttentionStack


@dataclass(frozen=True)
class Toy(Settings):
    """Settings of the method for tests."""

    scale: float = setting(0.5, "initial standard deviation")
    weight: float = setting(0.1, "weight of the loss")
    warmup: int = setting(0, "updates until the weight is full")


class SharedBias(nn.Module):
    """A parameter of the whole stack."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))


@register_method("toy", settings=Toy)
class ToyAttention(AttentionMethod):
    """Adds Gaussian noise to the logits (for tests)."""

    def __init__(self, settings: Toy, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.log_scale = nn.Parameter(torch.full((info.num_heads, 1, 1), settings.scale).log())
        self.schedule = ramp(settings.weight, warmup=settings.warmup)

    @classmethod
    def build_shared(cls, settings: Toy, stack: AttentionStack) -> nn.Module:
        return SharedBias()

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        logits = logits.float() * (1 + context.stack.shared["toy"].bias)  # (B, H, T, S)
        calls = context.stack.state.get("calls", 0)
        context.stack.state["calls"] = calls + 1
        scale = self.log_scale.float().exp()  # (H, 1, 1)
        if self.training:
            penalty = (scale.square() * context.valid).sum()
            self.add_loss("toy", penalty, self.schedule)
            self.add_measure("toy_scale", scale.mean().detach())
        if self.stochastic:
            logits = logits + scale * torch.randn_like(logits)
        return logits
