"""Adversarial self-attention (Wu et al. 2022): an adversary masks what the model relies on.

In every layer (Eq. 5, Fig. 3) the adversary computes Q̃ and K̃, two linear functions of the layer's
input. It masks each (query, key) pair, for all heads, with the probability σ(Q̃K̃ᵀ/√d + b). The masks
are sampled (binary concrete with a straight-through gradient) and act only on the adversarial half
of a paired batch, not on the clean half. Through gradient reversal the adversary maximises the
divergence between the predictions of both halves, minus τ times the masked share of valid pairs
(Eq. 8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...core.context import AttentionContext
from ...core.distributions import at_least_float, logistic_noise
from ...core.errors import SettingError, require_not_negative
from ...core.gradients import reverse_gradient, straight_through
from ...core.masking import MaskingMethod, check_share
from ...core.method import LayerInfo, register_method
from ...core.settings import Settings, setting

# The paper's τ in fine-tuning and in pre-training.
TAU, PRETRAINING_TAU = 0.3, 0.1


@dataclass(frozen=True)
class ASA(Settings):
    """Settings of adversarial self-attention."""

    dim: int = setting(0, "d, width of the adversary's Q̃ and K̃; 0 means the width of one head")
    initial_share: float = setting(
        0.5,
        "share of (query, key) pairs that the adversary masks at the start. If it is too small, "
        "the adversary hardly learns, because the gradient of a KL near 0 is almost 0",
    )
    weight: float = setting(1.0, "α, weight of the divergence between clean and masked predictions")
    tau: float | None = setting(
        None,
        "τ, weight of the penalty on the masked share: a lower weight gives more masking; "
        f"default: {TAU}, and {PRETRAINING_TAU} in pre-training (masked_lm, electra)",
    )
    start: int = setting(0, "update at which the attack starts; before it nothing is masked")

    def check(self) -> None:
        require_not_negative(self, "dim", "weight", "start")
        if self.tau is not None:
            require_not_negative(self, "tau")
        check_share(self, "initial_share")
        if self.initial_share == 0:
            raise SettingError(self, "initial_share", "must be positive")


@register_method("asa", settings=ASA)
class AdversarialSelfAttention(MaskingMethod):
    """An adversary learns to mask the (query, key) pairs that change the predictions most."""

    settings: ASA

    def __init__(self, settings: ASA, info: LayerInfo) -> None:
        super().__init__(settings, info)
        share = settings.initial_share
        self.dim = settings.dim or info.head_dim
        self.queries_and_keys = nn.Linear(info.query_dim, 2 * self.dim)  # Q̃ and K̃ in one product
        self.b = nn.Parameter(torch.tensor(math.log(share / (1 - share))))

    @property
    def tau(self) -> float:
        return TAU if self.settings.tau is None else self.settings.tau

    def set_tau(self, tau: float) -> None:
        self.settings = replace(self.settings, tau=tau)

    def adversary(self, context: AttentionContext) -> Tensor:
        """Q̃K̃ᵀ/√d + b, (B, 1, T, S): the logit of the probability of masking a pair.

        The input is detached: the adversary's gradient does not reach the model.
        """
        x = context.query_input.detach()  # (T, B, C)
        q, k = self.queries_and_keys(x).transpose(0, 1).chunk(2, dim=-1)  # (B, T, d)
        scores = at_least_float(torch.bmm(q * self.dim**-0.5, k.transpose(1, 2)))
        return scores.unsqueeze(1) + self.b.to(scores.dtype)

    def score(self, logits: Tensor, context: AttentionContext, valid: Tensor) -> Tensor:
        scores = self.adversary(context)
        return scores + logistic_noise(scores)

    def mask(self, masked: Tensor, score: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        """Return the mask. The attention's gradient is reversed in it, the penalty's is not."""
        m = straight_through(masked, score.sigmoid().masked_fill(~valid, 0.0))
        self.add_loss("masked_share", m.sum(), self.tau, "mean", count)
        return reverse_gradient(m)

    def skip(self) -> None:
        super().skip()
        # Add a loss of zero, since DistributedDataParallel waits for a gradient of every parameter.
        zero = sum(0.0 * parameter.sum() for parameter in self.parameters())
        self.add_loss("masked_share", zero, 0.0, "mean", zero.detach())
