"""SMART (Jiang et al. 2020): penalises predictions that change near the word embeddings.

    loss = L(X) + λ_s · max_{‖δ‖_∞ ≤ ε} l_s(f(X + δ), f(X)),  δ ← Π(δ + η·g/‖g‖_∞),  δ_0 ~ N(0, σ²)

l_s is the symmetric KL divergence, for regression the squared difference, summed over everything
that the task predicts: sentences, options, tagged words, masked or target tokens. All passes use
the same dropout, so l_s is zero without a perturbation.

The paper's second part, momentum Bregman proximal point optimization (§3.2), adds

    μ · l_s(f(X; θ), f(X; θ̃)),  θ̃ ← β·θ̃ + (1 − β)·θ after every update,

which keeps the predictions close to those of earlier parameters. θ̃ is a second copy of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..core.errors import SettingError, require_not_negative, require_positive
from ..core.perturbation import Ascent, Perturbation
from ..core.settings import Settings, setting


@dataclass(frozen=True)
class SMART(Settings):
    """Settings of SMART."""

    method = "smart"

    weight: float = setting(1.0, "λ_s, weight of the penalty; 1, 3 or 5 in the paper")
    steps: int = setting(1, "number of ascent steps")
    lr: float = setting(1e-3, "η, length of one ascent step")
    radius: float = setting(
        1e-3,
        "ε, largest absolute value of a component of the perturbation; 0 means no bound. The "
        "default equals one step, as in the authors' code; with the paper's 1e-5 the penalty is "
        "almost zero",
    )
    noise: float = setting(
        1e-5, "σ, standard deviation of the normal noise that the perturbation starts from"
    )
    bregman_weight: float = setting(
        0.0,
        "μ, weight of the Bregman term, the change of the predictions since the averaged "
        "parameters θ̃; 1 in the paper; 0 leaves it out and saves the second copy of the model",
    )
    momentum: float = setting(0.99, "β of the average θ̃ in the first updates")
    late_momentum: float = setting(0.999, "β of the average θ̃ in all later updates")
    momentum_updates: int = setting(
        0, "number of the first updates; 0 means a tenth of --max-update, or all if that is not set"
    )

    def check(self) -> None:
        require_positive(self, "steps")
        require_not_negative(self, "weight", "lr", "radius", "noise")
        require_not_negative(self, "bregman_weight", "momentum_updates")
        for name in ("momentum", "late_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(
                    self, name, f"must be at least 0 and below 1, not {getattr(self, name)}"
                )

    def momentum_at(self, update: int, planned: int) -> float:
        """β after the update of this number, counted from 1; ``planned`` updates, 0 if unknown."""
        first = self.momentum_updates or planned // 10
        early = update <= first or not (first or planned)
        return self.momentum if early else self.late_momentum

    @property
    def ascent(self) -> Ascent:
        """One ascent step of δ, in the maximum norm of a sentence."""
        return Ascent(self.lr, self.radius, order=math.inf)

    def perturbation(self) -> Perturbation:
        """A perturbation for one batch; takes its seed from torch's random state."""
        return Perturbation(partial(normal_start, deviation=self.noise))


def normal_start(
    like: Tensor, not_padding: Tensor, random: torch.Generator, deviation: float
) -> Tensor:
    """δ_0 ~ N(0, σ²), zero at padding.

    ``like`` gives the shape (B, T, C); ``not_padding`` is (B, T); ``deviation`` is σ.
    """
    noise = torch.empty_like(like).normal_(0.0, 1.0, generator=random)
    return noise * not_padding[:, :, None] * deviation


def smoothness_loss(
    settings: SMART,
    model: nn.Module,
    clean: Tensor,
    predict: Callable[[], Tensor],
    distance: Callable[[Tensor, Tensor], Tensor],
    perturbation: Perturbation,
) -> Tensor:
    """max_δ l_s(f(X + δ), f(X)), a sum over all predictions.

    ``clean`` is f(X); ``predict()`` runs the model on the same batch with the same dropout;
    ``distance`` is l_s; ``perturbation`` is δ, which takes its ascent steps here.
    """

    def perturbed() -> Tensor:
        with perturbation.applied(model):
            return predict()

    for _ in range(settings.steps):
        perturbation.ascend(distance(perturbed(), clean.detach()), settings.ascent)
    return distance(perturbed(), clean)
