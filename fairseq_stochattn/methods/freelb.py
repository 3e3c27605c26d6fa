"""FreeLB (Zhu et al. 2020, Algorithm 1): trains on K perturbations of the word embeddings.

    δ_0 ~ U(−ε₀, ε₀)/√(n·C),  δ_t = Π_{‖δ‖ ≤ ε}(δ_{t−1} + α·g/‖g‖),  g = ∇_δ L(X + δ_{t−1})
    loss = 1/K Σ_{t<K} L(X + δ_t)

δ is a constant in the loss, so the gradient of the loss is the mean of the K gradients, as in the
algorithm; loss scaling, gradient accumulation and several ranks work as usual. All K passes use the
same dropout (§3.3). At test time nothing is perturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..core.errors import require_not_negative, require_positive
from ..core.perturbation import Ascent, Perturbation, replayed_randomness
from ..core.settings import Settings, setting

Pass = TypeVar("Pass")


@dataclass(frozen=True)
class FreeLB(Settings):
    """Settings of FreeLB."""

    method = "freelb"

    steps: int = setting(2, "K, number of forward passes per batch, each with its own perturbation")
    lr: float = setting(0.1, "α, length of one ascent step of a sentence's perturbation")
    radius: float = setting(
        0.3, "ε, largest Frobenius norm of a sentence's perturbation; 0 means no bound"
    )
    init: float = setting(
        0.1, "ε₀, magnitude of the uniform noise that the perturbation starts from"
    )

    def check(self) -> None:
        require_positive(self, "steps")
        require_not_negative(self, "lr", "radius", "init")

    @property
    def ascent(self) -> Ascent:
        """One ascent step of δ, in the Frobenius norm of a sentence."""
        return Ascent(self.lr, self.radius, order=2)


def uniform_start(
    like: Tensor, not_padding: Tensor, random: torch.Generator, magnitude: float
) -> Tensor:
    """δ_0 ~ U(−ε₀, ε₀)/√(n·C) for sentences of n tokens, so that ‖δ_0‖ ≤ ε₀.

    ``like`` gives the shape (B, T, C); ``not_padding`` is (B, T); ``magnitude`` is ε₀.
    """
    components = not_padding.sum(dim=1).clamp(min=1) * like.size(-1)  # (B,): n·C
    noise = torch.empty_like(like).uniform_(-magnitude, magnitude, generator=random)
    return noise * not_padding[:, :, None] / components.sqrt()[:, None, None]


def perturbed_passes(
    settings: FreeLB, model: nn.Module, run: Callable[[], Pass], loss_of: Callable[[Pass], Tensor]
) -> tuple[list[Pass], Perturbation]:
    """The results of ``run()`` under δ_0 … δ_{K−1}, and the last perturbation.

    ``run()`` runs the model on one batch; ``loss_of`` reads from its result the loss L that δ
    maximises.
    """
    perturbation = Perturbation(partial(uniform_start, magnitude=settings.init))
    passes: list[Pass] = []
    with replayed_randomness() as replay:
        for step in range(settings.steps):
            replay()
            with perturbation.applied(model):
                passes.append(run())
            if step + 1 < settings.steps:
                perturbation.ascend(loss_of(passes[-1]), settings.ascent)
    return passes, perturbation
