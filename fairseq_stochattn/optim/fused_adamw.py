"""``--optimizer fused_adamw``: torch's AdamW with its fused kernel.

It is faster than fairseq's Adam, which is a loop in Python, and has the same flags and the same
decoupled weight decay. torch adds ε to √v̂ after the bias correction, fairseq adds it to √v before,
so both agree where ε is small compared to √v.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II

from ..core.memory import keep_freed_memory


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """The flags that ``--optimizer adam`` has too."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas for Adam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for Adam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    lr: list[float] = field(default=II("optimization.lr"))


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqAdam):
    """torch.optim.AdamW(fused=True)."""

    def __init__(self, cfg: Any, params: Any) -> None:
        FairseqOptimizer.__init__(self, cfg)
        keep_freed_memory()  # a fifth of a small model's step on the CPU
        self._optimizer = torch.optim.AdamW(params, fused=True, **self.optimizer_config)

    @property
    def supports_flat_params(self) -> bool:
        return True
