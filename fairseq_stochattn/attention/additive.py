"""Multi-head additive attention (Lin et al. 2017; An et al. 2020, App. A): a sentence as a matrix.

    A = softmax(Vᵀ tanh(W Hᵀ)),  Z = A H

H (n, d) are the states of n words, V (d_a, M) scores them for M heads, Z (M, d) is the sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_stochattn.attention.watching import Heads, ShowsHeads
from fairseq_stochattn.distributions import at_least_float


class AdditiveAttention(ShowsHeads, nn.Module):
    """A and Z of a batch of sentences, padding excluded."""

    def __init__(self, dim: int, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w = nn.Linear(dim, hidden, bias=False)
        self.v = nn.Linear(hidden, num_heads, bias=False)  # its weight is Vᵀ, one row a head

    def head_parameters(self) -> dict[str, list[nn.Parameter]]:
        """The particles: v_i is what head i asks for, its query. W is common to the heads."""
        return {"q": [self.v.weight]}

    def forward(self, h: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """h (B, n, d) and padding (B, n), True there → Z (B, M, d), A (B, M, n).

        A sentence of nothing but padding attends to nothing: its rows of A and Z are 0.
        """
        padding = padding.unsqueeze(1)  # (B, 1, n)
        scores = at_least_float(self.v(torch.tanh(self.w(h)))).transpose(1, 2)  # (B, M, n)
        lowest = torch.finfo(scores.dtype).min  # not −inf: a softmax over nothing would be NaN
        a = scores.masked_fill(padding, lowest).softmax(dim=-1).masked_fill(padding, 0.0)
        z = torch.bmm(a.type_as(h), h)  # (B, M, d)
        if self.watchers:
            # One query a head and sentence: (B, M, 1, n) and (B, M, 1, d).
            self.show(Heads(a.unsqueeze(2), z.unsqueeze(2), padding.all(dim=-1)))
        return z, a
