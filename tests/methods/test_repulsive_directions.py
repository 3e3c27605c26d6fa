"""Repulsion of directions: against its equation, orthogonal to the heads, and on a toy task."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fairseq_stochattn as sa
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.methods.head_diversity import mean_cosine
from fairseq_stochattn.methods.repulsive.directions import mixed_with_gradient, tangent, turn
from fairseq_stochattn.methods.repulsive.particles import gram


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.double)


def by_the_equation(theta: Tensor) -> Tensor:
    """t of one system (M, D): minus h/2 times the Riemannian gradient of the log density."""
    units = theta / theta.norm(dim=1, keepdim=True)
    pairs = [(units[i] - units[j]).norm().item() for i in range(len(theta)) for j in range(i)]
    h = np.median(pairs) ** 2 / math.log(len(theta))
    found = []
    for i, unit in enumerate(units):
        u = unit.clone().requires_grad_()
        others = torch.cat([units[:i], units[i + 1 :]])
        density = torch.logsumexp(-(others - u).square().sum(dim=1) / h, dim=0)
        (gradient,) = torch.autograd.grad(-h / 2 * density, u)
        found.append(gradient - (gradient @ unit) * unit)
    return torch.stack(found)


@pytest.mark.parametrize("particles", [2, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_the_step_equals_a_reference_in_double_precision(
    particles: int, dtype: torch.dtype
) -> None:
    theta = draw(3, particles, 7) * torch.tensor([0.1, 1.0, 30.0]).view(3, 1, 1)
    theta = theta * torch.linspace(0.5, 2, particles).view(1, -1, 1)  # heads of unequal lengths
    rates = torch.tensor([0.1, 0.2, 0.3], dtype=torch.double)
    given = theta.to(dtype)
    step = turn(gram(given), rates.to(dtype)) @ given
    expected = torch.stack([by_the_equation(x) for x in theta])
    expected = expected * rates.view(3, 1, 1) * theta.norm(dim=2, keepdim=True)
    tolerance = 1e-10 if dtype == torch.double else 2e-5
    error = (step.double() - expected).norm(dim=2) / expected.norm(dim=2)
    assert error.max() < tolerance


def test_the_radial_component_is_zero() -> None:
    """In 4096 dimensions, where SVGD's repulsion is nearly parallel to the head."""
    theta = draw(2, 4, 4096)
    t = tangent(gram(theta))[0] @ theta
    radial = torch.nn.functional.cosine_similarity(t, theta, dim=2)
    assert radial.abs().max() < 1e-12
    assert (t.norm(dim=2) <= 1).all()
    single = theta.float()
    t = tangent(gram(single))[0] @ single
    assert torch.nn.functional.cosine_similarity(t, single, dim=2).abs().max() < 1e-5


def test_permutation_rotation_and_lengths() -> None:
    theta = draw(1, 5, 6)
    t = tangent(gram(theta))[0] @ theta
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = theta[:, order]
    torch.testing.assert_close(tangent(gram(permuted))[0] @ permuted, t[:, order])
    rotation = torch.linalg.qr(draw(6, 6, seed=3)).Q
    rotated = theta @ rotation
    torch.testing.assert_close(tangent(gram(rotated))[0] @ rotated, t @ rotation)
    longer = theta * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 5, 1)
    torch.testing.assert_close(tangent(gram(longer))[0] @ longer, t)


def test_heads_end_in_a_simplex_of_the_same_lengths() -> None:
    theta = draw(1, 4, 10)
    lengths = theta.norm(dim=2)
    for _ in range(4000):
        theta = theta + turn(gram(theta), torch.tensor([0.01], dtype=torch.double)) @ theta
    assert mean_cosine(theta).item() == pytest.approx(-1 / 3, abs=1e-3)
    torch.testing.assert_close(theta.norm(dim=2), lengths, rtol=0.01, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 1.0])
def test_coupled_repulsion_is_relative_to_the_gradient(smoothing: float) -> None:
    theta, gradient = draw(2, 4, 9), draw(2, 4, 9, seed=1)
    norms = gradient.norm(dim=2)
    matrix, w = tangent(gram(theta))
    phi = mixed_with_gradient(gram(theta), norms, 0.3, smoothing).direction(gradient, theta)
    mean = (1 - smoothing) * gradient + smoothing * (w @ gradient)
    expected = -mean + 0.3 * norms.unsqueeze(2) * (matrix @ theta)
    torch.testing.assert_close(phi, expected)
    radial = ((phi + mean) * theta).sum(dim=2)
    torch.testing.assert_close(radial, torch.zeros_like(radial), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_degenerate_systems_stay_finite(dtype: torch.dtype) -> None:
    many = draw(1, 5, 1000).to(dtype)
    identical = many[:, :1].expand(1, 5, 1000)
    one_zero = torch.cat([many[:, :4], torch.zeros_like(many[:, :1])], dim=1)
    cases = {
        "one particle": many[:, :1],
        "all identical": identical,
        "nearly identical": identical + 1e-9 * many,
        "most identical": torch.cat([identical[:, :4], many[:, 1:2]], dim=1),
        "all zero": torch.zeros_like(many),
        "one zero": one_zero,
        "huge": many * 1e15,
        "tiny": many * 1e-15,
    }
    for name, theta in cases.items():
        t = tangent(gram(theta))[0] @ theta
        assert t.isfinite().all(), name
        assert (t.norm(dim=2) < 1.001).all(), name
        if name in ("one particle", "all identical", "all zero"):
            assert t.norm() < 1e-3, name


class Heads(nn.Module):
    """Self-attention with four heads over a sequence, and a linear map of what it gathers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Linear(width, 4)
        weights = self.attention.in_proj_weight.detach().view(3, 4, width // 4, width)
        weights.copy_(weights[:, :1] + 0.3 * (weights - weights[:, :1]))  # similar heads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The answers (B, 4) and the outputs of the heads (B, H, d) at the last position."""
        weight, bias = self.attention.in_proj_weight, self.attention.in_proj_bias
        q, k, v = nn.functional.linear(x, weight, bias).chunk(3, dim=-1)
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (q, k, v))
        z = nn.functional.scaled_dot_product_attention(q[:, :, -1:], k, v)  # (B, H, 1, d)
        mixed = self.attention.out_proj(z.transpose(1, 2).flatten(2))
        return self.out(mixed[:, 0]), z[:, :, 0]


def toy_batch(generator: torch.Generator, size: int = 64) -> tuple[Tensor, Tensor]:
    """Sequences of 9 vectors: four carry a marker and a value each; the last one asks for all.

    The answer is the list of the four values, so four places have to be attended to separately: one
    head can only return a weighted mean of the values.
    """
    x = 0.1 * torch.randn(size, 9, 32, generator=generator)
    places = torch.rand(size, 8, generator=generator).argsort(dim=1)[:, :4]
    values = torch.randn(size, 4, generator=generator)
    for marker in range(4):
        rows = torch.arange(size)
        x[rows, places[:, marker], marker] += 2.0
        x[rows, places[:, marker], 8] += values[:, marker]
    x[:, -1, 9] += 2.0
    return x, values


def trained(seed: int, strength: float | None) -> tuple[float, float, float]:
    """Loss, cosine of parameters and Dist/norm of the toy after training."""
    torch.manual_seed(seed)
    model = Heads()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    if strength is not None:
        optimizer = sa.Repulsive(optimizer, model, strength=strength)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(500):
        x, values = toy_batch(generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x)[0], values).backward()
        optimizer.step()
    x, values = toy_batch(torch.Generator().manual_seed(1000), 1000)
    with torch.no_grad():
        answers, z = model(x)
    parts = [p[0].detach().view(4, -1) for p in find_heads(model)[0].parameters.values()]
    cosine = sum(mean_cosine(p).item() for p in parts) / 3
    distance = torch.cdist(z, z).sum(dim=(1, 2)).mean() / 12
    norm = z.norm(dim=2).mean()
    loss = nn.functional.mse_loss(answers, values).item()
    return loss, cosine, (distance / norm).item()


def test_heads_that_must_differ_do_so_at_no_loss() -> None:
    """Three seeds: lower cosine than plain; on average higher Dist/norm and a loss not higher."""
    found = {
        name: [trained(seed, strength) for seed in (101, 102, 103)]
        for name, strength in (("plain", None), ("ours", 0.3))
    }
    for name, rows in found.items():
        print(name, [tuple(round(x, 4) for x in row) for row in rows])
    for plain, ours in zip(found["plain"], found["ours"], strict=True):
        assert ours[1] < plain[1] - 0.1
    plain, ours = (torch.tensor(found[name]).mean(dim=0) for name in ("plain", "ours"))
    assert ours[2] > plain[2] + 0.01
    assert ours[0] <= plain[0]
