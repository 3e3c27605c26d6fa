"""Distributions equal Monte Carlo estimates, closed forms, scipy, and gradients by autograd."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats

from fairseq_stochattn.core import distributions as d
from fairseq_stochattn.methods.babn import inference

SAMPLES = 1_000_000
SHAPES = (0.5, 1.0, 2.5, 8.0)
SCALES = (0.05, 0.7, 3.0)
GAMMAS = ((0.05, 1.0), (0.5, 0.5), (1.0, 1.0), (3.0, 2.0))


def double(*values: float) -> list[torch.Tensor]:
    """The values as fp64 tensors."""
    return [torch.tensor(value, dtype=torch.float64) for value in values]


@pytest.mark.parametrize("few", [1 << 14, 0], ids=["torch's digamma", "own series"])
def test_digamma_error_is_below_1e_8(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d, "FEW_ELEMENTS", few)
    x = torch.cat([torch.linspace(0, 25, 5001), torch.tensor([1e-9, 1e3, 1e6])]).double()
    exact = torch.from_numpy(special.digamma(1 + x.numpy()))
    error = (d.digamma_1p(x) - exact).abs() / (1 + exact.abs())
    assert error.max() < 1e-8
    single = d.digamma_1p(x.float()).double()
    assert ((single - exact).abs() / (1 + exact.abs())).max() < 3e-6


@pytest.mark.parametrize(("k", "scale", "prior"), itertools.product(SHAPES, SCALES, GAMMAS))
def test_kl_weibull_gamma_equals_monte_carlo(k: float, scale: float, prior: tuple) -> None:
    alpha, beta = prior
    exact = d.kl_weibull_gamma(*double(k, math.log(scale)), torch.tensor(alpha).double(), beta)
    uniform = torch.rand(SAMPLES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    s = scale * (-torch.log1p(-uniform)) ** (1 / k)
    log_q = stats.weibull_min.logpdf(s.numpy(), k, scale=scale)
    log_p = stats.gamma.logpdf(s.numpy(), alpha, scale=1 / beta)
    difference = log_q - log_p
    error = difference.std() / math.sqrt(SAMPLES)
    assert abs(difference.mean() - exact.item()) < max(0.01 * abs(exact.item()), 5 * error)
    assert exact > 0


@pytest.mark.parametrize("s", [0.2, 1.0])
@pytest.mark.parametrize("prior", [(0.0, 1.0), (-1.5, 0.5)])
def test_kl_lognormal_equals_monte_carlo(s: float, prior: tuple) -> None:
    mu = 0.3
    exact = d.kl_lognormal(*double(mu, s, *prior))
    normal = torch.randn(SAMPLES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x = d.lognormal_log_sample(torch.tensor(mu).double(), s, normal).exp().numpy()
    log_q = stats.lognorm.logpdf(x, s, scale=math.exp(mu))
    log_p = stats.lognorm.logpdf(x, prior[1], scale=math.exp(prior[0]))
    assert abs((log_q - log_p).mean() - exact.item()) < 0.01 * exact.item()


@pytest.mark.parametrize("k", SHAPES)
def test_weibull_mean_and_variation_equal_those_of_samples(k: float) -> None:
    torch.manual_seed(3)
    noise = d.weibull_noise(torch.empty(SAMPLES, dtype=torch.float64), 0.0, 1.0)
    log_scale = torch.tensor(0.4).double()
    s = d.weibull_log_sample(log_scale, k, noise).exp()
    assert s.mean().item() == pytest.approx(
        d.weibull_log_mean(log_scale, torch.tensor(k).double()).exp().item(), rel=0.01
    )
    variation = d.weibull_variation(torch.tensor(k).double()).item()
    assert (s.std() / s.mean()).item() == pytest.approx(variation, rel=0.01)
    exact = stats.weibull_min(k, scale=math.exp(0.4))
    assert variation == pytest.approx(exact.std() / exact.mean(), rel=1e-6)
    # The sample in log space equals the direct formula, which does not overflow for these values.
    u = 1 - torch.exp(-noise.exp())
    assert torch.allclose(s, math.exp(0.4) * (-torch.log1p(-u)) ** (1 / k), rtol=1e-6)


def test_weibull_noise_is_uniform_within_its_bounds() -> None:
    torch.manual_seed(4)
    u = 1 - torch.exp(
        -d.weibull_noise(torch.empty(200_000, dtype=torch.float64), *d.NOISE_BOUNDS).exp()
    )
    assert u.min() >= 0.1 - 1e-9
    assert u.max() <= 0.9 + 1e-9
    assert stats.kstest(u.numpy(), stats.uniform(0.1, 0.8).cdf).pvalue > 1e-3


def test_lognormal_mean_and_variation_equal_those_of_samples() -> None:
    torch.manual_seed(5)
    mu, s = torch.tensor(-0.5).double(), 0.6
    x = d.lognormal_log_sample(mu, s, torch.randn(SAMPLES, dtype=torch.float64)).exp()
    assert x.mean().item() == pytest.approx(d.lognormal_log_mean(mu, s).exp().item(), rel=0.01)
    assert (x.std() / x.mean()).item() == pytest.approx(d.lognormal_variation(s), rel=0.01)


def direct(scores, f1, f2, alpha, noise, valid, rho, sigma, k_min, beta):
    """``weibull_attention`` written as in its equations, with functions of torch."""
    k = rho * F.softplus(f1) + scores.exp() + k_min
    gamma = torch.lgamma(1 + 1 / k).exp()
    scale = scores.exp() / gamma
    if f2 is not None:
        scale = scale + sigma * F.softplus(f2)
    log_s = (scale * gamma).log() if noise is None else scale.log() + noise / k
    if alpha is None:
        return log_s, torch.zeros(()), k
    kl = d.kl_weibull_gamma(k, scale.log(), alpha, beta)
    return log_s, torch.where(valid, kl, 0.0).sum(), k


def example_inputs(seed: int = 0, queries: int = 1) -> dict[str, torch.Tensor]:
    """Random tensor arguments for ``weibull_attention``.

    α is the same for all queries, or with ``queries=4`` another one for each.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, 4, 5)
    inputs = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for name in ("scores", "f1", "f2")
    }
    shape_of_alpha = (2, 3, queries, 5)
    alpha = torch.randn(shape_of_alpha, dtype=torch.float64, generator=generator).softmax(-1)
    noise = torch.rand(shape, dtype=torch.float64, generator=generator).sub(0.5).mul(3)
    valid = torch.rand(2, 1, 4, 5, generator=generator) > 0.3
    return {**inputs, "alpha": alpha.requires_grad_(), "noise": noise, "valid": valid}


CONSTANTS = {"rho": 1.5, "sigma": 0.3, "k_min": 0.05, "beta": 0.7}


@pytest.mark.parametrize("few", [1 << 14, 0], ids=["torch's digamma", "own series"])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("absent", [(), ("f2",), ("alpha",), ("noise",), ("f2", "noise", "alpha")])
def test_weibull_attention_equals_the_equations(
    absent: tuple[str, ...], queries: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(d, "FEW_ELEMENTS", few)
    inputs = example_inputs(queries=queries)
    inputs = {name: None if name in absent else x for name, x in inputs.items()}
    found, expected = (
        inference.weibull_attention(**inputs, **CONSTANTS),
        direct(**inputs, **CONSTANTS),
    )
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y.to(x), rtol=1e-6, atol=1e-7)
    leaves = [inputs[n] for n in ("scores", "f1", "f2", "alpha") if inputs[n] is not None]
    grad_log_s = torch.linspace(-1, 1, found[0].numel(), dtype=torch.float64).view_as(found[0])
    grads = [
        torch.autograd.grad((log_s * grad_log_s).sum() + 0.3 * kl, leaves, allow_unused=True)
        for log_s, kl, _ in (found, expected)
    ]
    for x, y in zip(*grads, strict=True):
        y = torch.zeros_like(x) if y is None else y
        assert torch.allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("absent", [(), ("f2",), ("alpha",), ("noise",), ("f2", "noise", "alpha")])
def test_normalize_equals_a_log_softmax_of_the_scores(absent: tuple[str, ...]) -> None:
    """Values and gradients are equal, even if some (query, key) pairs are blocked."""
    inputs = {name: None if name in absent else x for name, x in example_inputs(2).items()}
    blocked = torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(3)) > 0.7
    blocked[..., 0] = False
    logits = inputs.pop("scores")

    def masked() -> torch.Tensor:
        return (logits * 20).masked_fill(blocked, -torch.inf)

    log_softmax = masked().log_softmax(dim=-1).clamp(min=-1e5)
    inputs["valid"] = inputs["valid"] & ~blocked
    both = [
        inference.weibull_attention(masked(), **inputs, **CONSTANTS, normalize=True),
        inference.weibull_attention(log_softmax, **inputs, **CONSTANTS),
    ]
    visible = (~blocked).expand_as(logits)
    for pair in zip(*both, strict=True):
        found, expected = (x[visible] if x.shape == logits.shape else x for x in pair)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    grads = [
        torch.autograd.grad(torch.where(visible, log_s, 0.0).square().sum() + 0.3 * kl, logits)[0]
        for log_s, kl, _ in both
    ]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)
    assert grads[0].abs().max() > 0.1


@pytest.mark.parametrize("normalize", [False, True])
def test_fp32_is_accurate_at_the_smallest_k(normalize: bool) -> None:
    """At the lower bound of the shape k, Γ(1+1/k) and the mean E[S] lose most precision."""
    absent = {"alpha": None, "noise": None, "valid": None}
    scores = torch.linspace(-60, 0, 20).view(1, 1, 4, 5)
    f1, f2 = torch.full_like(scores, -30.0), torch.linspace(-80, 30, 20).view_as(scores)
    constants = {"rho": 1.5, "sigma": 1.0, "k_min": 0.03, "beta": 1.0, "normalize": normalize}
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (scores, f1, f2)]
        log_s, _, k = inference.weibull_attention(*inputs, **absent, **constants)
        found.append([log_s, k, *torch.autograd.grad(log_s.sum(), inputs)])
    for fp32, fp64 in zip(*found, strict=True):
        torch.testing.assert_close(fp32, fp64.to(fp32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("queries", [1, 4])
def test_gradients_equal_finite_differences(queries: int) -> None:
    inputs = example_inputs(1, queries)

    def function(scores, f1, f2, alpha):
        leaves = {"scores": scores, "f1": f1, "f2": f2, "alpha": alpha}
        return inference.weibull_attention(**{**inputs, **leaves}, **CONSTANTS)[:2]

    assert torch.autograd.gradcheck(function, [inputs[n] for n in ("scores", "f1", "f2", "alpha")])
    k = (torch.rand(6, dtype=torch.float64) + 0.3).requires_grad_()
    log_scale, alpha = inputs["f1"][0, 0, 0], inputs["alpha"][0, 0, 0]
    assert torch.autograd.gradcheck(
        lambda k, log_scale, alpha: d.kl_weibull_gamma(k[:5], log_scale, alpha, 0.7),
        (k, log_scale.detach().requires_grad_(), alpha.detach().requires_grad_()),
    )
    mu, s = torch.randn(4, dtype=torch.float64, requires_grad=True), k[:4].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda mu, s: d.kl_lognormal(mu, s, mu * 0.5, s + 1), (mu, s))


@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_extreme_scores_stay_finite(value: float) -> None:
    inputs = {
        name: x.detach().float() if x.dtype.is_floating_point else x
        for name, x in example_inputs().items()
    }
    inputs["scores"] = torch.full_like(inputs["scores"], value).requires_grad_()
    log_s, kl, k = inference.weibull_attention(**inputs, **{**CONSTANTS, "sigma": 1e-6})
    assert log_s.isfinite().all()
    assert k.isfinite().all()
    assert kl.isfinite()
    (grad_scores,) = torch.autograd.grad(log_s.sum() + kl, inputs["scores"])
    assert grad_scores.isfinite().all()
