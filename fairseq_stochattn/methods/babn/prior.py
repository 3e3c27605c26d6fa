"""The gamma prior of Bayesian attention, and the settings that babn and bam share.

The prior of a weight is Gamma(α, β) with α = c·m and β = c. Its mean m is the softmax over the keys
of f_η2(ReLU(f_η1(K))), where K are the keys and f_η1, f_η2 are linear layers (Zhang et al. 2021,
§3; Fan et al. 2020 call it the contextual prior). The strength c says how narrow the prior is: its
coefficient of variation is 1/√(c·m). The paper has α = m and a constant β, which is c = 1 with any
β. m is about 1/S for S keys, so this prior is very wide (the KL is smallest for k near 0.13), and
only a tiny weight of the KL is usable. With c of 10 to 100, the KL is smallest for k of 2 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.context import AttentionContext
from ...core.cut_noise import UNCUT
from ...core.distributions import MIN_ALPHA, NOISE_BOUNDS, at_least_float
from ...core.errors import require_not_negative, require_positive
from ...core.losses import Reduction
from ...core.schedule import Schedule, ramp
from ...core.settings import Settings, setting
from ...core.softmax import softmax


@dataclass(frozen=True)
class KLSettings(Settings):
    """Weight, schedule and reduction of the KL between posterior and prior, for babn and bam."""

    kl_weight: float = setting(0.03, "full weight of the KL", flag="kl_weight")
    kl_start: int = setting(0, "update at which the KL starts", flag="kl_start")
    kl_anneal_updates: int = setting(
        1000,
        "updates over which the weight of the KL grows from 0 to its full value",
        flag="kl_anneal_updates",
    )
    kl_reduction: Literal["mean", "sum"] = setting(
        "mean",
        "KL per target: the mean over the valid (query, key) pairs of a layer, added over the "
        "layers; or the sum over all pairs, which gives the exact ELBO",
        flag="kl_reduction",
    )

    def check(self) -> None:
        require_not_negative(self, "kl_weight", "kl_start", "kl_anneal_updates")

    @property
    def kl_schedule(self) -> Schedule:
        """The weight of the KL as a function of the update."""
        return ramp(self.kl_weight, self.kl_start, self.kl_anneal_updates)

    @property
    def kl_loss_reduction(self) -> Reduction:
        """``kl_reduction`` as a reduction of ``core/losses.py``."""
        return "layer_mean" if self.kl_reduction == "mean" else "sum"


NOISE_HELP = (
    "uniform noise of the Weibull samples: full, from 0 to 1; cut, from 0.1 to 0.9; or paper, cut "
    "in the same way, but with the mean of full noise at test time"
)


@dataclass(frozen=True)
class BayesianSettings(KLSettings):
    """What babn and bam have in common: the gamma prior, the noise, and the KL."""

    prior_strength: float = setting(
        10.0,
        "c, strength of the gamma prior: α = c times the mean of the prior, and β = c; 1 is the "
        "paper's prior, which needs a KL weight of about 0.0001",
    )
    beta: float | None = setting(
        None, "β, rate of the gamma prior, if it is not to be the prior strength"
    )
    prior_hidden: int = setting(32, "hidden units of the contextual prior")
    noise: Literal["full", "cut", "paper"] = setting("full", NOISE_HELP)

    def check(self) -> None:
        super().check()
        require_positive(self, "prior_strength", "prior_hidden")
        if self.beta is not None:
            require_positive(self, "beta")

    @property
    def rate(self) -> float:
        """β, the rate of the gamma prior."""
        return self.prior_strength if self.beta is None else self.beta

    @property
    def noise_bounds(self) -> tuple[float, float]:
        """The bounds of the uniform noise u."""
        return UNCUT if self.noise == "full" else NOISE_BOUNDS


class ContextualPrior(nn.Module):
    """The network f_η of one layer, shared by all heads: keys (B, H, S, d) → the prior's mean m."""

    def __init__(self, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.f1 = nn.Linear(head_dim, hidden)
        self.f2 = nn.Linear(hidden, 1)

    def forward(self, context: AttentionContext) -> Tensor:
        """Return m, which adds up to 1 over the keys that a query sees.

        Its shape is (B, H, 1, S), the same for all queries; or (B, H, T, S) if queries see
        different keys, as under a causal mask.
        """
        # With the keys first, as the projection W_K returns them, nothing is copied.
        hidden = torch.relu(linear(context.k.permute(2, 0, 1, 3), self.f1))  # (S, B, H, hidden)
        logits = linear(hidden, self.f2).permute(1, 2, 3, 0)  # (B, H, 1, S)
        return softmax(context.mask(logits))

    def once(self, context: AttentionContext) -> Tensor:
        """Return m, computed once for the same keys. An LSTM calls this for every query."""
        state, key = context.stack.state, f"prior_{id(self)}"
        if key not in state or state[key][0] is not context.key_input:
            state[key] = context.key_input, self(context)
        return state[key][1]


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a linear layer in fp32 or fp64, even if the model has lower precision."""
    x = at_least_float(x)
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def gamma_shape(strength: float, mean: Tensor) -> Tensor:
    """α = c·m of the gamma prior, bounded below, since m is 0 at padding and future keys."""
    return (strength * mean).clamp(min=MIN_ALPHA)
