"""Adversarial self-attention (Wu et al. 2022): an adversary masks what the model leans on.

In every layer (Eq. 5, Fig. 3) Q̃ and K̃, linear in the layer's input, give each cell the probability
σ(Q̃K̃ᵀ/√d + b) to be masked for all heads. The masks are sampled (binary concrete with a
straight-through gradient) and act on the half of a doubled batch that is under attack. Through
gradient reversal the adversary climbs the divergence of the two halves' predictions, less τ times
the masked share of valid cells (Eq. 8); the criterion ``asa`` has both.
"""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.masking import Masking, checked_share
from fairseq_stochattn.attention.method import Place, register_method
from fairseq_stochattn.distributions import at_least_float, logistic_noise
from fairseq_stochattn.errors import UsageError, require_not_negative
from fairseq_stochattn.gradients import reverse_gradient, straight_through


@dataclass
class AdversarialConfig(FairseqDataclass):
    asa_dim: int = field(
        default=0, metadata={"help": "d, width of the adversary's Q̃ and K̃; 0: that of one head"}
    )
    asa_initial_share: float = field(
        default=0.5,
        metadata={
            "help": "share of cells that the adversary masks to begin with; a small one lets it "
            "fall asleep, since a KL near 0 has no slope"
        },
    )


@register_method("asa")
class AdversarialAttention(Masking):
    """Adversarial self-attention: learns which cells to mask against the model."""

    Config = AdversarialConfig

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        require_not_negative(config, "asa_dim")
        share = checked_share(config.asa_initial_share, "--asa-initial-share")
        if share == 0:
            raise UsageError("--asa-initial-share must be positive")
        self.dim = config.asa_dim or place.head_dim
        self.queries_and_keys = nn.Linear(place.query_dim, 2 * self.dim)  # Q̃ and K̃, in one product
        self.b = nn.Parameter(torch.tensor(math.log(share / (1 - share))))

    def adversary(self, cells: Cells) -> Tensor:
        """Q̃K̃ᵀ/√d + b, (B, 1, T, S): the logit that a cell is masked; nothing of it is the model's
        to learn from."""
        x = cells.query_input.detach()  # (T, B, C)
        q, k = self.queries_and_keys(x).transpose(0, 1).chunk(2, dim=-1)  # (B, T, d)
        scores = at_least_float(torch.bmm(q * self.dim**-0.5, k.transpose(1, 2)))
        return scores.unsqueeze(1) + self.b.to(scores.dtype)

    def score(self, logits: Tensor, cells: Cells, valid: Tensor) -> Tensor:
        scores = self.adversary(cells)
        return scores + logistic_noise(scores)

    def mask(self, masked: Tensor, score: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        """The penalty pulls on the mask as it is; the attention's gradient reaches it reversed."""
        m = straight_through(masked, score.sigmoid().masked_fill(~valid, 0.0))
        self.leave("masked_share", m.sum(), weight=1.0, mean=True, count=count)
        return reverse_gradient(m)

    def rest(self) -> None:
        super().rest()
        # Nothing, but DistributedDataParallel waits for a gradient of every parameter.
        nothing = sum(0.0 * parameter.sum() for parameter in self.parameters())
        self.leave("masked_share", nothing, weight=0.0, mean=True, count=nothing.detach())
