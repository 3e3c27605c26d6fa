"""Particle-optimization sampling (An et al. 2020, Eq. 4 and 5; SGLD of App. C.1): pure functions.

S systems of M particles θ in D dimensions are tensors (S, M, D), gradients ∇U and noise ξ likewise.
Every rule is linear in them, φ = A·∇U + B·θ + c·ξ, with matrices A and B (S, M, M) that depend on
the distances between the particles alone. So no difference θ_j − θ_i is ever formed, and a particle
may come in several parts (a head's weights and biases): distances add up, each part is mixed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Squared distances this small beside the particles' own squared lengths are rounding: the particles
# are one and the same. In units of the precision, which the Gram matrix cannot resolve further.
_RESOLUTION = 8.0


class Settings(NamedTuple):
    """The hyper-parameters of the rules."""

    epsilon: float = 0.1  # ε, the stepsize
    a: float = 0.01  # the weight of the repulsion, a temperature: the law of SVGD is ∝ exp(−U/a)
    beta: float = 1.0  # β, an inverse temperature: the law of SGLD is ∝ exp(−βU)

    @property
    def noise(self) -> float:
        return math.sqrt(2 / (self.beta * self.epsilon))


class Mixture(NamedTuple):
    """What a rule makes of ∇U, θ and ξ: φ = A·∇U + B·θ + c·ξ."""

    gradient: Tensor  # A, (S, M, M)
    position: Tensor  # B, (S, M, M)
    noise: float = 0.0  # c

    def scaled(self, factor: float) -> Mixture:
        return Mixture(self.gradient * factor, self.position * factor, self.noise * factor)

    def split(self, size: int) -> list[Mixture]:
        """The same for every ``size`` systems."""
        both = zip(self.gradient.split(size), self.position.split(size), strict=True)
        return [Mixture(gradient, position, self.noise) for gradient, position in both]

    def direction(
        self, gradient: Tensor, theta: Tensor, xi: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """φ (S, M, D) of the particles, or of the part of them that all arguments are."""
        phi = torch.bmm(self.gradient, gradient, out=out).baddbmm_(self.position, theta)
        return phi if xi is None else phi.add_(xi, alpha=self.noise)


def gram(theta: Tensor) -> Tensor:
    """θθᵀ (S, M, M); those of the parts of a particle add up."""
    return torch.bmm(theta, theta.transpose(1, 2))


def squared_distances(gram: Tensor) -> Tensor:
    """‖θ_i − θ_j‖² (S, M, M), from the Gram matrix: no tensor (S, M, M, D) as of differences."""
    lengths = gram.diagonal(dim1=1, dim2=2)
    both = lengths.unsqueeze(1) + lengths.unsqueeze(2)
    squared = both - 2 * gram
    return squared.masked_fill_(squared <= _RESOLUTION * torch.finfo(gram.dtype).eps * both, 0.0)


def bandwidth(squared: Tensor) -> Tensor:
    """h = med²/log M (S, 1, 1), med the median distance of two particles (App. B).

    Where there is no such distance, all particles being one, κ is 1 whatever h: 1.
    """
    particles = squared.size(1)
    if particles == 1:
        return torch.ones_like(squared)
    above = torch.triu_indices(particles, particles, offset=1, device=squared.device)
    distances = squared[:, above[0], above[1]].sqrt_().sort(dim=1).values  # (S, M(M − 1)/2)
    pairs = distances.size(1)
    median = (distances[:, (pairs - 1) // 2] + distances[:, pairs // 2]) / 2
    h = median.square() / math.log(particles)
    return torch.where(h > 0, h, 1.0).view(-1, 1, 1)


def kernel(squared: Tensor, h: Tensor) -> Tensor:
    """κ(θ_i, θ_j) = exp(−‖θ_i − θ_j‖²/h), (S, M, M)."""
    return torch.exp(-squared / h)


def svgd(squared: Tensor, h: Tensor, settings: Settings) -> Mixture:
    """Eq. 4: φ_i = 1/M Σ_j [−κ_ji ∇_j U + a·∇_j κ_ji].

    Σ_j ∇_j κ_ji = 2/h Σ_j κ_ji (θ_i − θ_j) is the matrix 2/h (diag(κ1) − κ) times θ.
    """
    kappa = kernel(squared, h) / squared.size(1)
    repulsion = torch.diag_embed(kappa.sum(dim=2)) - kappa
    return Mixture(-kappa, repulsion * (2 * settings.a / h))


def spos(squared: Tensor, h: Tensor, settings: Settings) -> Mixture:
    """Eq. 5: SVGD's φ_i − β⁻¹ ∇_i U + √(2 β⁻¹ ε⁻¹)·ξ_i."""
    stein = svgd(squared, h, settings)
    return Mixture(stein.gradient - _eye(squared) / settings.beta, stein.position, settings.noise)


def sgld(squared: Tensor, h: Tensor, settings: Settings) -> Mixture:
    """Langevin dynamics, each particle by itself: φ_i = −∇_i U + √(2 β⁻¹ ε⁻¹)·ξ_i."""
    return Mixture(-_eye(squared).expand_as(squared), torch.zeros_like(squared), settings.noise)


Rule = Callable[[Tensor, Tensor, Settings], Mixture]
RULES: dict[str, Rule] = {"svgd": svgd, "spos": spos, "sgld": sgld}


def _eye(squared: Tensor) -> Tensor:
    return torch.eye(squared.size(1), dtype=squared.dtype, device=squared.device)
