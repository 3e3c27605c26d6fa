"""Particle-optimization sampling (An et al. 2020, Eq. 4 and 5; SGLD of App. C.1): pure functions.

A particle θ is a head; particles repel each other only within their system. S systems of M
particles in D dimensions have the shape (S, M, D), as have the gradients ∇U of the loss U and the
Gaussian noise ξ. Every rule gives a direction φ that is linear in these: φ = A·∇U + B·θ + c·ξ, with
matrices A and B (S, M, M) that depend only on the distances between the particles. So no tensor of
differences θ_j − θ_i is needed. A particle may consist of several tensors (a head's weights and
biases): their Gram matrices add up, and φ is computed for each of them separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# A squared distance below this many machine epsilons, relative to the squared lengths of the two
# particles, is a rounding error of the Gram matrix: the particles are identical.
_RESOLUTION = 8.0


class Hyperparameters(NamedTuple):
    """The hyper-parameters of the rules svgd, spos and sgld."""

    epsilon: float = 0.1  # ε, the stepsize
    a: float = 0.01  # weight of the repulsion, a temperature: SVGD samples from ∝ exp(−U/a)
    beta: float = 1.0  # β, an inverse temperature: SGLD samples from ∝ exp(−βU)

    @property
    def noise(self) -> float:
        """√(2 β⁻¹ ε⁻¹), the factor of ξ."""
        return math.sqrt(2 / (self.beta * self.epsilon))


class Mixture(NamedTuple):
    """The coefficients of a rule: φ = A·∇U + B·θ + c·ξ."""

    gradient: Tensor  # A, (S, M, M)
    position: Tensor  # B, (S, M, M)
    noise: float = 0.0  # c

    def scaled(self, factor: float) -> Mixture:
        """The coefficients of ``factor`` · φ."""
        return Mixture(self.gradient * factor, self.position * factor, self.noise * factor)

    def split(self, size: int) -> list[Mixture]:
        """The coefficients in chunks of at most ``size`` systems."""
        both = zip(self.gradient.split(size), self.position.split(size), strict=True)
        return [Mixture(gradient, position, self.noise) for gradient, position in both]

    def direction(
        self, gradient: Tensor, theta: Tensor, xi: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """φ (S, M, D), for whole particles or for one of the tensors they consist of."""
        phi = torch.bmm(self.gradient, gradient, out=out).baddbmm_(self.position, theta)
        return phi if xi is None else phi.add_(xi, alpha=self.noise)


def gram(theta: Tensor) -> Tensor:
    """The Gram matrix θθᵀ, (S, M, M)."""
    return torch.bmm(theta, theta.transpose(1, 2))


def squared_distances(gram: Tensor) -> Tensor:
    """‖θ_i − θ_j‖² (S, M, M) from the Gram matrix, which avoids differences (S, M, M, D)."""
    lengths = gram.diagonal(dim1=1, dim2=2)
    both = lengths.unsqueeze(1) + lengths.unsqueeze(2)
    squared = both - 2 * gram
    return squared.masked_fill_(squared <= _RESOLUTION * torch.finfo(gram.dtype).eps * both, 0.0)


def bandwidth(squared: Tensor) -> Tensor:
    """The kernel's bandwidth h = med²/log M (S, 1, 1), med = median pairwise distance (App. B).

    If the median is 0, or there is only one particle, h is 1.
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
    """The RBF kernel κ(θ_i, θ_j) = exp(−‖θ_i − θ_j‖²/h), (S, M, M)."""
    return torch.exp(-squared / h)


def svgd(squared: Tensor, h: Tensor, hyper: Hyperparameters) -> Mixture:
    """Eq. 4: φ_i = 1/M Σ_j [−κ_ji ∇_j U + a·∇_j κ_ji].

    Σ_j ∇_j κ_ji = 2/h Σ_j κ_ji (θ_i − θ_j) is the matrix 2/h (diag(κ1) − κ) times θ.
    """
    kappa = kernel(squared, h) / squared.size(1)
    repulsion = torch.diag_embed(kappa.sum(dim=2)) - kappa
    return Mixture(-kappa, repulsion * (2 * hyper.a / h))


def spos(squared: Tensor, h: Tensor, hyper: Hyperparameters) -> Mixture:
    """Eq. 5: SVGD's φ_i − β⁻¹ ∇_i U + √(2 β⁻¹ ε⁻¹)·ξ_i."""
    stein = svgd(squared, h, hyper)
    return Mixture(stein.gradient - _eye(squared) / hyper.beta, stein.position, hyper.noise)


def sgld(squared: Tensor, h: Tensor, hyper: Hyperparameters) -> Mixture:
    """App. C.1, independent Langevin dynamics: φ_i = −∇_i U + √(2 β⁻¹ ε⁻¹)·ξ_i."""
    return Mixture(-_eye(squared).expand_as(squared), torch.zeros_like(squared), hyper.noise)


Rule = Callable[[Tensor, Tensor, Hyperparameters], Mixture]
RULES: dict[str, Rule] = {"svgd": svgd, "spos": spos, "sgld": sgld}


def _eye(squared: Tensor) -> Tensor:
    return torch.eye(squared.size(1), dtype=squared.dtype, device=squared.device)
