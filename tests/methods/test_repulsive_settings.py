"""Settings of the repulsive optimizer: coupling, prior, kernel, released variant, warnings."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import fairseq_stochattn as sa
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.methods.repulsive.particles import (
    Hyperparameters,
    cosine,
    gram,
    spos,
    squared_distances,
    svgd,
)
from fairseq_stochattn.methods.repulsive.settings import RepulsiveSettings
from fairseq_stochattn.methods.repulsive.systems import System, redirect


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.double)


def attention(scale: float = 1.0) -> nn.MultiheadAttention:
    """A module with random gradients, also for its biases."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = scale * draw(*parameter.shape, seed=number).float()
    return model


def heads_of(model: nn.Module) -> list[Tensor]:
    """The weights of Q, K and V, (H, d·C) each."""
    parameters = find_heads(model)[0].parameters
    return [parts[0].detach().clone().view(4, -1) for parts in parameters.values()]


def test_decoupled_repulsion_is_a_tangential_step_beside_the_base_optimizer() -> None:
    """The heads move by the plain step and by a step orthogonal to them; nothing else differs."""
    plain, ours = attention(), attention()
    start = heads_of(plain)
    base = torch.optim.SGD(plain.parameters(), 0.01)
    base.step()
    sa.Repulsive(torch.optim.SGD(ours.parameters(), 0.01), ours, strength=5.0).step()
    for before, one, two in zip(start, heads_of(plain), heads_of(ours), strict=True):
        turn = two - one
        radial = nn.functional.cosine_similarity(turn, before, dim=1)
        assert radial.abs().max() < 1e-4
        assert turn.norm() > 0.01
    assert torch.equal(plain.in_proj_bias, ours.in_proj_bias)  # biases are not particles
    assert torch.equal(plain.out_proj.weight, ours.out_proj.weight)


def test_the_step_is_independent_of_the_gradient_under_adam() -> None:
    """Gradients that are 1000 times smaller leave the turn of the heads as it is."""
    turns = []
    for scale in (1.0, 1e-3):
        moved = []
        for strength in (0.0, 1.0):
            model = attention(scale)
            base = torch.optim.AdamW(model.parameters(), 0.01, eps=0)
            sa.Repulsive(base, model, strength=strength).step()
            moved.append(heads_of(model))
        turns.append([b - a for a, b in zip(*moved, strict=True)])
    for one, other in zip(*turns, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_settings_of_the_learning_rate_are_those_of_the_parameter_group() -> None:
    model = attention()
    groups = [{"params": [model.in_proj_weight], "lr": 0.0}, {"params": [model.out_proj.weight]}]
    before = heads_of(model)
    sa.Repulsive(torch.optim.SGD(groups, 0.1), model, strength=10.0).step()
    assert all(torch.equal(*pair) for pair in zip(before, heads_of(model), strict=True))


def test_old_states_are_loaded() -> None:
    """A state saved before the rule directions existed has no entries for it."""
    model = attention()
    base = torch.optim.AdamW(model.parameters(), 0.01)
    old = sa.Repulsive(base, model, rule="svgd")
    old.step()
    state = old.state_dict()
    assert set(state) == {"state", "param_groups", "repulsive_updates"}
    new = sa.Repulsive(torch.optim.AdamW(model.parameters(), 0.01), model)
    new.load_state_dict(state)
    assert new.num_updates == 1
    new.step()


def test_a_gaussian_prior_adds_its_gradient() -> None:
    """U + λ‖θ‖²/2 has the gradient ∇U + λθ, which the kernel averages like ∇U."""
    theta, gradient = draw(2, 4, 7), draw(2, 4, 7, seed=1)
    mixture = svgd(gram(theta), Hyperparameters())
    expected = mixture.direction(gradient + 0.3 * theta, theta)
    found = mixture.with_prior(0.3).direction(gradient, theta)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_the_cosine_kernel_equals_autograd(smoothing: float) -> None:
    """Table 9: φ_i = 1/M Σ_j [−κ_ji ∇_j U + a ∇_j κ_ji]; without smoothing, −∇_i U/M."""
    theta, gradient = draw(5, 7), draw(5, 7, seed=1)
    hyper = Hyperparameters(a=0.7, kernel="cosine", smoothing=smoothing)
    found = svgd(gram(theta[None]), hyper).direction(gradient[None], theta[None])[0]
    for i in range(5):
        total = torch.zeros(7, dtype=torch.double)
        for j in range(5):
            x = theta[j].clone().requires_grad_()
            kappa = nn.functional.cosine_similarity(x, theta[i], dim=0)
            (slope,) = torch.autograd.grad(kappa, x)
            share = kappa.detach() if smoothing or i == j else 0.0
            total += (-share * gradient[j] + 0.7 * slope) / 5
        torch.testing.assert_close(found[i], total)
    zero = torch.zeros(1, 3, 4)
    assert all(x.isfinite().all() for x in cosine(gram(zero)))


def test_the_released_variant() -> None:
    """h = med²/log(M + 1) over all M² pairs, and noise relative to the median gradient."""
    theta, gradient = draw(1, 4, 6), draw(1, 4, 6, seed=1)
    found = svgd(gram(theta), Hyperparameters(a=0.5, released=True)).direction(gradient, theta)[0]
    squared = squared_distances(gram(theta))[0]
    h = squared.flatten().sort().values[7] / math.log(5)  # the lower of the two middle values
    kappa = torch.exp(-squared / h)
    push = (theta[0].unsqueeze(1) - theta[0].unsqueeze(0)) * kappa.unsqueeze(2) * 2 / h
    expected = (-kappa @ gradient[0] + 0.5 * push.sum(dim=1)) / 4
    torch.testing.assert_close(found, expected)
    for scale in (1.0, 100.0):
        weight = nn.Parameter(torch.zeros(64, 500))
        weight.grad = torch.full_like(weight, scale)
        hyper = Hyperparameters(epsilon=0.2, beta=4.0, released=True)
        redirect([System(8, (weight,))], spos, hyper, 0)
        assert weight.grad.std().item() == pytest.approx(scale * math.sqrt(2 * 0.2 / 4), rel=0.03)


def test_biases_are_particles_only_in_the_rules_of_the_paper() -> None:
    assert RepulsiveSettings(rule="svgd").biases
    assert not RepulsiveSettings(rule="svgd", variant="released").biases
    assert not RepulsiveSettings().biases
    model = attention()
    bias = model.in_proj_bias.grad.clone()
    sa.Repulsive(torch.optim.SGD(model.parameters(), 0.0), model, coupling="gradient").step()
    assert torch.equal(model.in_proj_bias.grad, bias)


def test_smoothing_is_a_share() -> None:
    with pytest.raises(ValueError, match="smoothing must be from 0 to 1, not 2"):
        RepulsiveSettings(smoothing=2)
    assert RepulsiveSettings(rule="svgd").hyperparameters.smoothing == 1
    assert RepulsiveSettings().smoothed == 0


@pytest.mark.parametrize(("size", "warned"), [(1e-4, True), (1.0, False)])
def test_gradients_near_eps_are_reported_once(size: float, warned: bool) -> None:
    """ε/M = 0.0025 turns gradients of 1e-4 into 2.5e-7, below Adam's eps of 1e-6."""
    model = attention(size)
    base = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-6)
    optimizer = sa.Repulsive(base, model, rule="svgd", epsilon=0.01, weight=0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
        optimizer.num_updates = 100
        optimizer.step()
    texts = [str(x.message) for x in caught if "repulsive" in str(x.message)]
    assert len(texts) == warned
    assert all("ε/M = 0.0025" in text and "eps 1e-06" in text for text in texts)
