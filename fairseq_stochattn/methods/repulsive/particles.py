"""Particle-optimization sampling (An et al. 2020, Eq. 4 and 5; SGLD of App. C.1): pure functions.

A particle θ is a head; particles repel each other only within their system. S systems of M
particles in D dimensions have the shape (S, M, D), as have the gradients ∇U of the loss U and the
Gaussian noise ξ. Every rule gives a direction φ that is linear in these: φ = A·∇U + B·θ + c·ξ, with
matrices A and B (S, M, M) that depend only on the distances between the particles. So no tensor of
differences θ_j − θ_i is needed. A particle may consist of several tensors (a head's weights and
biases): their Gram matrices add up, and φ is computed for each of them separately.

The authors' released code differs from the paper in three points, which ``released`` selects: h is
med²/log(M + 1), where the median is over all M² pairs; particles have no biases (systems.py); and
the noise is multiplied by the median of |∇U|.
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
    prior: float = 0.0  # precision of a Gaussian prior with mean 0; 0 is the uniform prior
    smoothing: float = 1.0  # 1: gradients are averaged over heads by κ (Eq. 4); 0: they are not
    kernel: str = "rbf"  # or "cosine"
    released: bool = False  # bandwidth and noise of the released code

    @property
    def noise(self) -> float:
        """√(2 β⁻¹ ε⁻¹), the factor of ξ."""
        return math.sqrt(2 / (self.beta * self.epsilon))


class Kernel(NamedTuple):
    """A kernel and its derivative, as matrices: Σ_j ∇_j κ_ji is row i of R·θ."""

    kappa: Tensor  # κ, (S, M, M)
    repulsion: Tensor  # R, (S, M, M)


class Mixture(NamedTuple):
    """The coefficients of a rule: φ = A·∇U + B·θ + c·ξ."""

    gradient: Tensor  # A, (S, M, M)
    position: Tensor  # B, (S, M, M)
    noise: float = 0.0  # c

    def scaled(self, factor: float) -> Mixture:
        """The coefficients of ``factor`` · φ."""
        return Mixture(self.gradient * factor, self.position * factor, self.noise * factor)

    def with_prior(self, precision: float) -> Mixture:
        """The coefficients for U + ‖θ‖²·precision/2, the potential with a Gaussian prior."""
        if not precision:
            return self
        return self._replace(position=self.position + precision * self.gradient)

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


def released_bandwidth(squared: Tensor) -> Tensor:
    """h = med²/log(M + 1) (S, 1, 1) as in the released code: med² over all M² pairs.

    The M zeros of the diagonal are among the pairs, and of two middle values the lower one counts.
    """
    median = squared.flatten(1).median(dim=1).values
    h = median / math.log(squared.size(1) + 1)
    return torch.where(h > 0, h, 1.0).view(-1, 1, 1)


def rbf(squared: Tensor, h: Tensor) -> Kernel:
    """The RBF kernel κ_ij = exp(−‖θ_i − θ_j‖²/h).

    Σ_j ∇_j κ_ji = 2/h Σ_j κ_ji (θ_i − θ_j), so R = 2/h (diag(κ1) − κ).
    """
    kappa = torch.exp(-squared / h)
    return Kernel(kappa, (torch.diag_embed(kappa.sum(dim=2)) - kappa) * (2 / h))


def cosine(gram: Tensor) -> Kernel:
    """The kernel κ_ij = cos(θ_i, θ_j) of App. C.6.

    ∇_j κ_ji = θ_i/(‖θ_i‖‖θ_j‖) − κ_ji θ_j/‖θ_j‖². A head of length 0 has the cosine 0 with all.
    """
    inverse = inverse_lengths(gram)
    kappa = gram * inverse.unsqueeze(1) * inverse.unsqueeze(2)
    both = inverse * inverse.sum(dim=1, keepdim=True)
    return Kernel(kappa, torch.diag_embed(both) - kappa * inverse.square().unsqueeze(1))


def inverse_lengths(gram: Tensor) -> Tensor:
    """1/‖θ_i‖ (S, M) from the Gram matrix; 0 if the length is 0."""
    squared = gram.diagonal(dim1=1, dim2=2)
    return torch.where(squared > 0, squared.rsqrt(), 0.0)


def kernel_of(gram: Tensor, hyper: Hyperparameters) -> Kernel:
    """The chosen kernel of the particles, with the bandwidth from their distances."""
    if hyper.kernel == "cosine":
        return cosine(gram)
    squared = squared_distances(gram)
    return rbf(squared, (released_bandwidth if hyper.released else bandwidth)(squared))


def stein(kernel: Kernel, hyper: Hyperparameters) -> Mixture:
    """Eq. 4: φ_i = 1/M Σ_j [−κ_ji ∇_j U + a·∇_j κ_ji].

    Without smoothing (App. C.6), the kernel of two different heads does not multiply a gradient.
    """
    particles = kernel.kappa.size(1)
    kappa = kernel.kappa
    if hyper.smoothing < 1:
        own = torch.diag_embed(kappa.diagonal(dim1=1, dim2=2))
        kappa = own + hyper.smoothing * (kappa - own)
    return Mixture(kappa / -particles, kernel.repulsion * (hyper.a / particles))


def svgd(gram: Tensor, hyper: Hyperparameters) -> Mixture:
    """Eq. 4 for particles with the given Gram matrix."""
    return stein(kernel_of(gram, hyper), hyper)


def spos(gram: Tensor, hyper: Hyperparameters) -> Mixture:
    """Eq. 5: SVGD's φ_i − β⁻¹ ∇_i U + √(2 β⁻¹ ε⁻¹)·ξ_i."""
    mixture = svgd(gram, hyper)
    return Mixture(mixture.gradient - _eye(gram) / hyper.beta, mixture.position, hyper.noise)


def sgld(gram: Tensor, hyper: Hyperparameters) -> Mixture:
    """App. C.1, independent Langevin dynamics: φ_i = −∇_i U + √(2 β⁻¹ ε⁻¹)·ξ_i."""
    return Mixture(-_eye(gram).expand_as(gram), torch.zeros_like(gram), hyper.noise)


Rule = Callable[[Tensor, Hyperparameters], Mixture]
RULES: dict[str, Rule] = {"svgd": svgd, "spos": spos, "sgld": sgld}


def _eye(gram: Tensor) -> Tensor:
    return torch.eye(gram.size(1), dtype=gram.dtype, device=gram.device)
