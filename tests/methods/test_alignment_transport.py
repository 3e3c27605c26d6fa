"""Transport between padded distributions equals the library POT, loops and closed forms."""

from __future__ import annotations

import math

import ot
import pytest
import torch
from torch import Tensor

from fairseq_stochattn.methods.alignment.transport import (
    conditional_transport,
    cosine_cost,
    euclidean_cost,
    sinkhorn,
    squared_mmd,
)

COSTS = {"cosine": cosine_cost, "euclidean": euclidean_cost}
STRICT = {"stopThr": 1e-12, "numItermax": 50000}
LENGTHS = (7, 12, 1, 4)  # number of non-padding points per sentence, out of 12


def clouds(seed: int = 0, dim: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Points q, k (4, 2, 12, d) and their masses (4, 1, 12). Points at padding are far away."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 4, 2, 12, dim, generator=generator, dtype=dtype)
    mass = torch.zeros(4, 1, 12, dtype=dtype)
    for row, length in enumerate(LENGTHS):
        mass[row, :, :length] = 1 / length
        q[row, :, length:], k[row, :, length:] = 1e3, -1e3
    return q, k + 0.5, mass, mass.clone()


def sentences(x: Tensor) -> list[tuple[int, int, int]]:
    """(row, head, number of points) of every distribution in x."""
    return [(b, h, LENGTHS[b]) for b in range(x.size(0)) for h in range(x.size(1))]


@pytest.mark.parametrize("name", COSTS)
def test_costs_equal_their_formulas(name: str) -> None:
    q, k, *_ = clouds()
    found = COSTS[name](q, k)[1, 0, 2, 3]
    x, y = q[1, 0, 2], k[1, 0, 3]
    by_hand = {"cosine": 1 - x @ y / (x.norm() * y.norm()), "euclidean": (x - y).square().sum()}
    torch.testing.assert_close(found, by_hand[name])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "epsilon"), [("cosine", 0.01), ("euclidean", 0.3)])
def test_plan_has_the_required_marginals(name: str, epsilon: float, dtype: torch.dtype) -> None:
    q, k, p_q, p_k = clouds(dtype=dtype)
    plan = sinkhorn(COSTS[name](q, k), p_q, p_k, epsilon, iterations=2000)
    torch.testing.assert_close(plan.sum(-1), p_q.expand(4, 2, 12), rtol=0, atol=1e-4)
    torch.testing.assert_close(plan.sum(-2), p_k.expand(4, 2, 12), rtol=0, atol=1e-5)
    assert not plan[0, :, 7:].any()
    assert not plan[0, :, :, 7:].any()


@pytest.mark.parametrize(("name", "epsilon"), [("cosine", 0.05), ("euclidean", 1.0)])
def test_plan_and_cost_equal_those_of_pot(name: str, epsilon: float) -> None:
    q, k, p_q, p_k = clouds()
    cost = COSTS[name](q, k)
    plan = sinkhorn(cost, p_q, p_k, epsilon, iterations=5000, tolerance=1e-10)
    for b, h, n in sentences(q):
        matrix, mass = cost[b, h, :n, :n].numpy(), p_q[b, 0, :n].numpy()
        theirs = torch.from_numpy(ot.sinkhorn(mass, mass, matrix, epsilon, **STRICT))
        torch.testing.assert_close(plan[b, h, :n, :n], theirs, rtol=0, atol=1e-7)
        found, expected = (cost[b, h] * plan[b, h]).sum(), (cost[b, h, :n, :n] * theirs).sum()
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", COSTS)
def test_a_small_epsilon_gives_the_exact_transport(name: str) -> None:
    q, k, p_q, p_k = clouds()
    cost = COSTS[name](q, k)
    found = (cost * sinkhorn(cost, p_q, p_k, 1e-3, iterations=5000)).sum((-1, -2))
    for b, h, n in sentences(q):
        mass = p_q[b, 0, :n].numpy()
        exact = ot.emd2(mass, mass, cost[b, h, :n, :n].numpy())
        assert found[b, h].item() == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("name", COSTS)
def test_gradient_equals_that_of_the_entropic_cost(name: str) -> None:
    """The gradient of ⟨C, π⟩ with constant π equals finite differences of the entropic cost.

    The entropic cost is the minimum of ⟨C, π⟩ + ε Σ π log π over transport plans π.
    """
    epsilon, step = {"cosine": 0.1, "euclidean": 1.0}[name], 1e-4
    q, k, p_q, p_k = clouds(seed=3)
    direction = torch.randn(q.shape, generator=torch.Generator().manual_seed(1), dtype=q.dtype)

    def entropic(points: Tensor, b: int, h: int, n: int) -> float:
        matrix = COSTS[name](points, k)[b, h, :n, :n].numpy()
        mass = p_q[b, 0, :n].numpy()
        plan = torch.from_numpy(ot.sinkhorn(mass, mass, matrix, epsilon, **STRICT))
        return ((torch.from_numpy(matrix) + epsilon * plan.log()) * plan).sum().item()

    points = q.clone().requires_grad_()
    cost = COSTS[name](points, k)
    plan = sinkhorn(cost, p_q, p_k, epsilon, iterations=5000, tolerance=1e-10)
    (grad_q,) = torch.autograd.grad((cost * plan).sum(), points)
    assert not grad_q[0, :, 7:].any()
    for b, h, n in [(0, 0, 7), (1, 1, 12), (3, 0, 4)]:
        plus, minus = (entropic(q + s * direction, b, h, n) for s in (step, -step))
        derivative = (grad_q[b, h] * direction[b, h]).sum().item()
        assert derivative == pytest.approx((plus - minus) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("name", COSTS)
def test_equal_distributions_have_cost_0(name: str) -> None:
    q, _, p_q, p_k = clouds(dim=16, dtype=torch.float32)
    for points in (q, torch.ones_like(q), torch.zeros_like(q)):
        points = points.clone().requires_grad_()
        cost = COSTS[name](points, points.detach())
        plan = sinkhorn(cost, p_q, p_k, 0.01, iterations=100)
        found = (cost * plan).sum((-1, -2))
        if points.any() or name == "euclidean":  # the zero vector has no direction
            assert found.abs().max() < 1e-3
        found.sum().backward()
        assert points.grad.isfinite().all()


def test_plan_after_few_iterations_is_finite_with_exact_columns() -> None:
    q, k, p_q, p_k = clouds()
    plan = sinkhorn(euclidean_cost(q, k), p_q, p_k, 1e-3, iterations=3)
    assert plan.isfinite().all()
    torch.testing.assert_close(plan.sum(-2), p_k.expand(4, 2, 12))


def test_conditional_transport_equals_eq_4() -> None:
    q, k, p_q, p_k = clouds()
    affinity, cost = torch.matmul(q, k.transpose(2, 3)) / 5, cosine_cost(q, k)
    found = conditional_transport(affinity, cost, p_q, p_k)
    for b, h, n in sentences(q):
        total = 0.0
        for i in range(n):
            weights = [math.exp(affinity[b, h, i, j]) / n for j in range(n)]
            for j in range(n):
                total += 0.5 / n * weights[j] / sum(weights) * cost[b, h, i, j].item()
        for j in range(n):
            weights = [math.exp(affinity[b, h, i, j]) / n for i in range(n)]
            for i in range(n):
                total += 0.5 / n * weights[i] / sum(weights) * cost[b, h, i, j].item()
        assert found[b, h].item() == pytest.approx(total, rel=1e-9)


def test_squared_mmd_equals_explicit_loops() -> None:
    q, k, p_q, p_k = clouds()
    found = squared_mmd(q, k, p_q, p_k)

    def mean(x: Tensor, y: Tensor) -> float:
        pairs = [(s, t) for i, s in enumerate(x) for j, t in enumerate(y) if i != j]
        return sum(math.exp(-(s - t).square().sum() / 2) for s, t in pairs) / len(pairs)

    for b, h, n in sentences(q):
        x, y = q[b, h, :n], k[b, h, :n]
        by_hand = 0.0 if n == 1 else mean(x, x) + mean(y, y) - 2 * mean(x, y)
        assert found[b, h].item() == pytest.approx(by_hand, abs=1e-12)
    assert squared_mmd(q, q, p_q, p_q).abs().max() < 1e-12


def test_squared_mmd_is_unbiased() -> None:
    """Its mean is 0 for samples of one distribution, and a closed form if one is shifted."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4000, 1, 6, 2, generator=generator)
    mass = torch.full((4000, 1, 6), 1 / 6)
    assert abs(squared_mmd(q, k, mass, mass).mean().item()) < 0.01
    shift = 1.5  # along one of two axes: E k(x, y) = exp(−shift²/6)/3 for unit Gaussians
    moved = k + torch.tensor([shift, 0.0])
    expected = 2 / 3 * (1 - math.exp(-(shift**2) / 6))
    found = squared_mmd(q, moved, mass, mass).mean().item()
    assert found == pytest.approx(expected, abs=0.015)
