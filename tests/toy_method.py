"""A method of the tests' own: it uses every part of the protocol, so the protocol is tested.

Gaussian noise on the logits with a learned scale per head and a bias shared along the stack.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.method import (
    AttentionMethod,
    Place,
    Schedule,
    register_method,
)
from fairseq_stochattn.attention.stack import AttentionStack


@dataclass
class ToyConfig(FairseqDataclass):
    toy_scale: float = field(default=0.5, metadata={"help": "initial standard deviation"})
    toy_weight: float = field(default=0.1, metadata={"help": "weight of the loss"})
    toy_warmup: int = field(default=0, metadata={"help": "updates until the weight is full"})


class SharedBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))


@register_method("toy")
class Toy(AttentionMethod):
    """Gaussian noise on the logits (tests only)."""

    Config = ToyConfig

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        self.log_scale = nn.Parameter(torch.full((place.num_heads, 1, 1), config.toy_scale).log())
        self.schedule = Schedule(config.toy_weight, warmup=config.toy_warmup)

    @classmethod
    def build_shared(cls, config: Namespace, stack: AttentionStack) -> nn.Module:
        return SharedBias()

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        logits = logits.float() * (1 + cells.stack.shared["toy"].bias)  # (B, H, T, S)
        calls = cells.stack.state.get("calls", 0)
        cells.stack.state["calls"] = calls + 1
        scale = self.log_scale.float().exp()  # (H, 1, 1)
        if self.training:
            penalty = (scale.square() * cells.valid).sum()
            self.leave("toy", penalty, self.schedule(self.num_updates))
            self.leave("toy_scale", scale.mean().detach(), mean=True)
        if self.stochastic:
            logits = logits + scale * torch.randn_like(logits)
        return logits
