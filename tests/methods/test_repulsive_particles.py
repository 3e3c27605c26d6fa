"""SVGD, SPOS and SGLD: against Eq. 4 and 5 term by term, in limiting cases, and as samplers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fairseq_stochattn.methods.repulsive.particles import (
    RULES,
    Hyperparameters,
    Mixture,
    bandwidth,
    gram,
    rbf,
    squared_distances,
    stein,
)

SETTINGS = Hyperparameters(epsilon=0.3, a=0.7, beta=2.5)
every_rule = pytest.mark.parametrize("rule", RULES)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.double)


def mixture(rule: str, theta: Tensor, settings: Hyperparameters = SETTINGS) -> Mixture:
    return RULES[rule](gram(theta), settings)


def by_the_equations(
    rule: str, theta: Tensor, gradient: Tensor, xi: Tensor, settings: Hyperparameters
) -> Tensor:
    """φ of one system (M, D) by a double loop over particles, with ∇_j κ from autograd."""
    m = len(theta)
    distances = [(theta[i] - theta[j]).norm().item() for i in range(m) for j in range(i)]
    h = np.median(distances) ** 2 / math.log(m)
    phi = []
    for i in range(m):
        total = torch.zeros_like(theta[i])
        for j in range(m):
            theta_j = theta[j].clone().requires_grad_()
            kappa = torch.exp(-(theta_j - theta[i]).square().sum() / h)
            (grad_kappa,) = torch.autograd.grad(kappa, theta_j)
            total += (-kappa.detach() * gradient[j] + settings.a * grad_kappa) / m
        noise = math.sqrt(2 / settings.beta / settings.epsilon) * xi[i]
        if rule == "spos":
            total += -gradient[i] / settings.beta + noise
        phi.append(-gradient[i] + noise if rule == "sgld" else total)
    return torch.stack(phi)


@every_rule
@pytest.mark.parametrize("particles", [2, 4, 5])
def test_rules_equal_their_equations(rule: str, particles: int) -> None:
    theta, gradient, xi = (draw(3, particles, 7, seed=seed) for seed in range(3))
    found = mixture(rule, theta)
    phi = found.direction(gradient, theta, xi if found.noise else None)
    expected = [by_the_equations(rule, *x, SETTINGS) for x in zip(theta, gradient, xi, strict=True)]
    torch.testing.assert_close(phi, torch.stack(expected), rtol=1e-10, atol=1e-12)
    scaled = found.scaled(-0.3).direction(gradient, theta, xi if found.noise else None)
    torch.testing.assert_close(scaled, -0.3 * phi)


@every_rule
def test_particles_in_two_parts_have_the_same_direction(rule: str) -> None:
    """φ is the same for weights and biases in separate tensors, as in a model, or in one."""
    theta, gradient, xi = (draw(3, 4, 9, seed=seed) for seed in range(3))
    whole = mixture(rule, theta).direction(gradient, theta, xi)
    parts = theta.split([6, 3], dim=2)
    found = RULES[rule](gram(parts[0]) + gram(parts[1]), SETTINGS)
    split = zip(gradient.split([6, 3], 2), parts, xi.split([6, 3], 2), strict=True)
    phi = [found.direction(*part) for part in split]
    torch.testing.assert_close(torch.cat(phi, dim=2), whole)


def test_distances_from_the_gram_matrix() -> None:
    theta = draw(2, 5, 300)
    expected = (theta.unsqueeze(1) - theta.unsqueeze(2)).square().sum(-1)
    torch.testing.assert_close(squared_distances(gram(theta)), expected)
    single = squared_distances(gram(theta.float()))
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_kernel_of_the_median_pair_is_one_over_m() -> None:
    """The purpose of h = med²/log M: the kernels of a particle add up to about 1."""
    theta = draw(4, 3, 6)  # an odd number of pairs, so that the median is one of them
    squared = squared_distances(gram(theta))
    kappa = rbf(squared, bandwidth(squared)).kappa
    pairs = kappa[:, [0, 0, 1], [1, 2, 2]].sort(dim=1).values
    torch.testing.assert_close(pairs[:, 1], torch.full((4,), 1 / 3, dtype=torch.double))


@pytest.mark.parametrize("rule", ["svgd", "spos"])
def test_rules_commute_with_permutation_translation_and_rotation(rule: str) -> None:
    theta, gradient = draw(1, 6, 4), draw(1, 6, 4, seed=1)
    phi = mixture(rule, theta).direction(gradient, theta)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = mixture(rule, theta[:, order]).direction(gradient[:, order], theta[:, order])
    torch.testing.assert_close(permuted, phi[:, order])
    moved = theta + draw(4, seed=2)
    torch.testing.assert_close(mixture(rule, moved).direction(gradient, moved), phi)
    rotation = torch.linalg.qr(draw(4, 4, seed=3)).Q
    rotated = mixture(rule, theta @ rotation).direction(gradient @ rotation, theta @ rotation)
    torch.testing.assert_close(rotated, phi @ rotation)


def test_repulsion_increases_distances_and_keeps_the_mean() -> None:
    theta = draw(1, 6, 4)
    phi = mixture("svgd", theta).direction(torch.zeros_like(theta), theta)
    torch.testing.assert_close(phi.sum(dim=1), torch.zeros(1, 4, dtype=torch.double))
    before, after = (squared_distances(gram(x)).sum() for x in (theta, theta + 0.1 * phi))
    assert after > before


def test_with_an_identity_kernel_it_is_plain_training() -> None:
    """κ → identity: φ_i = −∇_i U/M for every weight a, which is plain training with stepsize ε/M.

    With the median heuristic κ does not become the identity, so h is given here.
    """
    theta, gradient = draw(2, 4, 5), draw(2, 4, 5, seed=1)
    squared = squared_distances(gram(theta))
    h = torch.full((2, 1, 1), 1e-3, dtype=torch.double)
    for a in (0.0, 1.0):
        phi = stein(rbf(squared, h), Hyperparameters(a=a)).direction(gradient, theta)
        torch.testing.assert_close(phi, -gradient / 4)
    alone = mixture("sgld", theta, Hyperparameters()).direction(gradient, theta)
    torch.testing.assert_close(alone, -gradient)


def test_without_repulsion_gradients_are_averaged() -> None:
    """a = 0: φ_i = −1/M Σ_j κ_ji ∇_j U; with κ → 1 all particles follow the mean gradient."""
    theta, gradient = draw(2, 4, 5), draw(2, 4, 5, seed=1)
    squared = squared_distances(gram(theta))
    h = torch.full((2, 1, 1), 1e12, dtype=torch.double)
    phi = stein(rbf(squared, h), Hyperparameters(a=0.0)).direction(gradient, theta)
    torch.testing.assert_close(phi, -gradient.mean(dim=1, keepdim=True).expand_as(phi))


@every_rule
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_degenerate_systems_stay_finite(rule: str, dtype: torch.dtype) -> None:
    single, many = draw(1, 1, 1000).to(dtype), draw(1, 5, 1000).to(dtype)
    identical = many[:, :1].expand(1, 5, 1000)
    systems = {
        "one particle": single,
        "all identical": identical,
        "most identical": torch.cat([identical[:, :4], many[:, :1] + 1], dim=1),
        "all zero": torch.zeros_like(many),
        "nearly identical": identical + 1e-9 * many,
        "huge": many * 1e15,
        "tiny": many * 1e-15,
    }
    for name, theta in systems.items():
        gradient = draw(*theta.shape, seed=1).to(dtype)
        phi = mixture(rule, theta).direction(gradient, theta)
        assert phi.isfinite().all(), name
        if rule == "svgd" and name in ("one particle", "all identical", "all zero"):
            mean = gradient.mean(dim=1, keepdim=True).expand_as(phi)
            torch.testing.assert_close(phi, -mean, msg=name)


def sample(
    rule: str, settings: Hyperparameters, steps: int, burn_in: int, systems: int, particles: int = 8
) -> Tensor:
    """(T, S, M): one-dimensional particles of Eq. 3 that sample the posterior N(2, 1/4)."""
    generator = torch.Generator().manual_seed(0)
    theta = 0.1 * draw(systems, particles, 1)
    pool = []
    for step in range(steps):
        xi = torch.randn(theta.shape, generator=generator, dtype=torch.double)
        phi = mixture(rule, theta, settings).direction((theta - 2) / 0.25, theta, xi)
        theta = theta + settings.epsilon * phi
        if step >= burn_in:
            pool.append(theta.squeeze(2))
    return torch.stack(pool)


def test_svgd_recovers_a_gaussian_posterior() -> None:
    """The mean is exact; the variance is too small with few particles, less so with more."""
    found = {}
    for particles in (8, 40):
        last = sample("svgd", Hyperparameters(0.05, 1.0), 600, 599, 1, particles).squeeze()
        assert last.mean().item() == pytest.approx(2, abs=1e-3)
        found[particles] = last.var().item() / 0.25
    print(f"SVGD: variance over that of the posterior {found}")
    assert 0.8 < found[8] < found[40] < 1
    assert found[40] > 0.93


def test_the_repulsive_weight_is_a_temperature() -> None:
    """a = 1/4 samples exp(−4U), with a quarter of the variance; a = 0 collapses to the mode."""
    spread = {
        a: sample("svgd", Hyperparameters(0.05, a), 600, 599, 1).var() for a in (1.0, 0.25, 0.0)
    }
    assert (spread[0.25] / spread[1.0]).item() == pytest.approx(0.25, rel=1e-3)
    assert spread[0.0] < 1e-12


def test_spos_recovers_a_gaussian_posterior_and_does_not_collapse() -> None:
    pool = sample("spos", Hyperparameters(0.02, 1.0, 1.0), 800, 200, systems=40)
    print(f"SPOS: mean {pool.mean():.4f}, variance {pool.var() / 0.25:.4f} of the posterior's")
    assert pool.mean().item() == pytest.approx(2, abs=0.01)
    assert pool.var().item() == pytest.approx(0.25, rel=0.08)
    assert pool.std(dim=2).min() > 0.1 * 0.5


def test_sgld_samples_the_tempered_posterior() -> None:
    """The discretised dynamics have the variance σ²/β / (1 − ε/2σ²)."""
    for beta in (1.0, 4.0):
        pool = sample("sgld", Hyperparameters(0.02, 0.0, beta), 800, 200, systems=40)
        expected = 0.25 / beta / (1 - 0.02 / 2 / 0.25)
        assert pool.mean().item() == pytest.approx(2, abs=0.01)
        assert pool.var().item() == pytest.approx(expected, rel=0.03)
