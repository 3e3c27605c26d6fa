"""Softmax over the keys that stays fast for short sentences on the CPU.

torch's CPU kernels process rows of at least 16 numbers with vector instructions, and shorter rows
one number at a time: a softmax over 15 keys takes about ten times as long as one over 16. Rows that
are too short are therefore padded with −inf, which does not change the result.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

VECTOR = 16  # fp32 numbers in one vector register of AVX-512
MIN_ROWS = 64  # below this number of rows, the padding costs more than it saves


def softmax(logits: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """softmax over the last axis, in ``dtype`` if it is given."""
    if not _is_slow(logits):
        return torch.softmax(logits, dim=-1, dtype=dtype)
    padded = F.pad(logits, (0, VECTOR - logits.size(-1)), value=float("-inf"))
    return torch.softmax(padded, dim=-1, dtype=dtype)[..., : logits.size(-1)].contiguous()


def log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last axis."""
    if not _is_slow(logits):
        return logits.log_softmax(dim=-1)
    padded = F.pad(logits, (0, VECTOR - logits.size(-1)), value=float("-inf"))
    return padded.log_softmax(dim=-1)[..., : logits.size(-1)].contiguous()


def _is_slow(logits: Tensor) -> bool:
    keys = logits.size(-1)
    return logits.device.type == "cpu" and 1 < keys < VECTOR and logits.numel() >= MIN_ROWS * keys
