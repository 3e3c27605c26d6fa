"""Repulsion of directions: heads turn away from each other and keep their lengths.

The particles are the unit vectors u_i = θ_i/‖θ_i‖ of the heads of one projection. Each head moves
down the logarithm of the kernel density of the other heads, within the tangent space of the sphere:

    t_i = −Σ_{j≠i} w_ij (u_j − (u_i·u_j) u_i),  w_ij = κ(u_i, u_j) / Σ_{k≠i} κ(u_i, u_k),

with the RBF kernel κ and the bandwidth h = med²/log M of the paper (An et al. 2020, App. B), taken
from the distances on the sphere. t_i is h/2 times the Riemannian gradient of −log Σ_{j≠i} κ(u_i,
u_j). It is orthogonal to θ_i, so it never acts as a negative weight decay, whereas the repulsion of
SVGD points mostly along θ_i in many dimensions. ‖t_i‖ ≤ 1, and t is 0 if the heads form a regular
simplex.

Like the rules of particles.py, t is a matrix (S, M, M) times θ (S, M, D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .particles import Mixture, bandwidth, inverse_lengths, squared_distances


def weights_on_sphere(cosine: Tensor) -> Tensor:
    """w (S, M, M) from the cosines of the heads; the diagonal is 0, other rows add up to 1."""
    if cosine.size(1) == 1:
        return torch.zeros_like(cosine)
    squared = squared_distances(cosine)
    logits = -squared / bandwidth(squared)
    diagonal = torch.eye(cosine.size(1), dtype=torch.bool, device=cosine.device)
    return logits.masked_fill(diagonal, float("-inf")).softmax(dim=2)


def tangent(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices C and w, (S, M, M) each: t = C·θ, and w, the weights of the other heads.

    Heads of length 0 do not move, and the other heads are not repelled by them.
    """
    inverse = inverse_lengths(gram)
    cosine = gram * inverse.unsqueeze(1) * inverse.unsqueeze(2)
    w = weights_on_sphere(cosine)
    moving = (inverse > 0).unsqueeze(2)
    matrix = torch.diag_embed((w * cosine).sum(dim=2)) - w
    return matrix * moving * inverse.unsqueeze(1), w


def turn(gram: Tensor, rates: Tensor) -> Tensor:
    """The matrix (S, M, M) whose product with θ is the decoupled step rate·‖θ_i‖·t_i.

    ``rates`` (S,) are the strength times the learning rate of each system. So a head turns by the
    angle rate·‖t_i‖, whatever its length and its gradient.
    """
    lengths = gram.diagonal(dim1=1, dim2=2).sqrt()  # (S, M)
    return tangent(gram)[0] * (rates.view(-1, 1) * lengths).unsqueeze(2)


def mixed_with_gradient(
    gram: Tensor, gradient_norms: Tensor | None, strength: float, smoothing: float
) -> Mixture:
    """The coefficients of φ_i = −∇̄_i U + strength·‖∇_i U‖·t_i.

    ``gradient_norms`` (S, M) are ‖∇_i U‖; None leaves the repulsion out. ∇̄_i is (1 − s) ∇_i +
    s Σ_{j≠i} w_ij ∇_j with s = ``smoothing``.
    """
    matrix, w = tangent(gram)
    eye = torch.eye(gram.size(1), dtype=gram.dtype, device=gram.device).expand_as(gram)
    smooth = torch.lerp(eye, w, smoothing) if smoothing and gram.size(1) > 1 else eye
    if gradient_norms is None:
        return Mixture(-smooth, torch.zeros_like(gram))
    return Mixture(-smooth, matrix * (strength * gradient_norms).unsqueeze(2))
