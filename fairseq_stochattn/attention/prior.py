"""The contextual prior of Bayesian attention: one number a head and key, the same for all queries.

α = softmax over keys of f_η2(ReLU(f_η1(K))) (BABN, §3; BAM calls it the contextual prior).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.distributions import MIN_ALPHA, at_least_float


class ContextualPrior(nn.Module):
    """f_η of one layer, shared by its heads: K (B, H, S, d) → α (B, H, 1, S), no padding in it."""

    def __init__(self, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.f1 = nn.Linear(head_dim, hidden)
        self.f2 = nn.Linear(hidden, 1)

    def forward(self, cells: Cells) -> Tensor:
        hidden = torch.relu(linear(cells.k, self.f1))  # (B, H, S, hidden)
        logits = linear(hidden, self.f2).transpose(2, 3)  # (B, H, 1, S)
        if cells.key_padding is not None:
            # A sentence of nothing but padding has no valid cell: any finite α does.
            padding = cells.key_padding & ~cells.key_padding.all(dim=1, keepdim=True)
            logits = logits.masked_fill(padding[:, None, None, :], float("-inf"))
        return logits.softmax(dim=-1).clamp(min=MIN_ALPHA)

    def once(self, cells: Cells) -> Tensor:
        """α, made once for keys that stay the same from query to query (LSTM)."""
        state, key = cells.stack.state, f"alpha_{id(self)}"
        if key not in state or state[key][0] is not cells.key_input:
            state[key] = cells.key_input, self(cells)
        return state[key][1]


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """A linear layer in fp32 or better, whatever the model's precision."""
    x = at_least_float(x)
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
