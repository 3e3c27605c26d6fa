"""Multi-head additive attention (Lin et al. 2017; An et al. 2020, App. A).

    A = softmax(Vᵀ tanh(W Hᵀ)),  Z = A H

H (n, d) holds the hidden states of n words. W (d_a, d) and V (d_a, M) are parameters; V has one
column per head. A (M, n) holds the attention weights of M heads, and the matrix Z (M, d) represents
the sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .distributions import at_least_float
from .head_hooks import HasHeadHooks, HeadOutputs


class AdditiveAttention(HasHeadHooks, nn.Module):
    """Computes Z and A for a batch of sentences and ignores padding."""

    def __init__(self, dim: int, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w = nn.Linear(dim, hidden, bias=False)
        self.v = nn.Linear(hidden, num_heads, bias=False)  # its weight is Vᵀ, one row per head

    def head_parameters(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each head, for repulsive attention.

        Row i of Vᵀ acts as the query of head i. W is shared by all heads.
        """
        return {"q": [self.v.weight]}

    def forward(self, h: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z (B, M, d) and A (B, M, n) for h (B, n, d) and padding (B, n), True at padding.

        If a sentence consists of padding only, its A and Z are 0.
        """
        padding = padding.unsqueeze(1)  # (B, 1, n)
        scores = at_least_float(self.v(torch.tanh(self.w(h)))).transpose(1, 2)  # (B, M, n)
        lowest = torch.finfo(scores.dtype).min  # with −inf, sentences of padding only would be NaN
        a = scores.masked_fill(padding, lowest).softmax(dim=-1).masked_fill(padding, 0.0)
        z = torch.bmm(a.type_as(h), h)  # (B, M, d)
        if self.head_hooks:
            # Hooks expect a query axis, and here each head has one query: (B, M, 1, n) and
            # (B, M, 1, d).
            self.call_head_hooks(HeadOutputs(a.unsqueeze(2), z.unsqueeze(2), padding.all(dim=-1)))
        return z, a
