"""The mathematics of the meters, each against a truth that is known in another way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.cut_noise import UNCUT, sampled_log_mean, sampled_variation
from fairseq_stochattn.core.distributions import NOISE_BOUNDS, weibull_noise
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.core.losses import collecting_losses, pool_layers, take_losses
from fairseq_stochattn.core.meters import measuring, probing
from fairseq_stochattn.methods.alignment.meter import (
    MAX_POINTS,
    cloud_meters,
    scaled_mmd,
    spread,
    spread_indices,
)
from fairseq_stochattn.methods.attendout.attention import AttendOutAttention
from fairseq_stochattn.methods.attendout.generator import Actions, DropoutGenerator
from fairseq_stochattn.methods.attendout.meter import correlation, harm_correlation, random_groups
from fairseq_stochattn.methods.repulsive.meter import (
    feature_meters,
    feature_sums,
    head_cosine,
    systems_of,
)
from fairseq_stochattn.uncertainty.sampling import switched


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# noise of babn and bam


def exact_moments(k: float, low: float, high: float) -> list[float]:
    """E[S/λ] and E[(S/λ)²] by incomplete gamma functions.

    They are ∫ t^(m/k) e^(−t) dt between −log(1−low) and −log(1−high), divided by high − low.
    """
    ends = [-math.log1p(-u) for u in (low, high)]
    moments = []
    for m in (1, 2):
        a = 1 + m / k
        whole = special.gammainc(a, ends[1]) - special.gammainc(a, ends[0])
        moments.append(math.exp(special.gammaln(a)) * whole / (high - low))
    return moments


@pytest.mark.parametrize("bounds", [NOISE_BOUNDS, (0.01, 0.99)])
def test_moments_of_cut_noise_equal_incomplete_gamma_functions(
    bounds: tuple[float, float],
) -> None:
    ks = np.geomspace(0.05, 100, 60)
    moments = [exact_moments(k, *bounds) for k in ks]
    found = sampled_variation(torch.tensor(ks), bounds).numpy()
    assert found == pytest.approx([math.sqrt(m[1] / m[0] ** 2 - 1) for m in moments], rel=2e-4)
    found = sampled_log_mean(torch.tensor(ks), bounds).exp().numpy()
    assert found == pytest.approx([m[0] for m in moments], rel=2e-4)


@pytest.mark.parametrize("bounds", [NOISE_BOUNDS, UNCUT])
@pytest.mark.parametrize("k", [0.7, 1.0, 3.6, 20.0])
def test_mean_and_variation_are_those_of_samples(k: float, bounds: tuple[float, float]) -> None:
    torch.manual_seed(1)
    samples = (weibull_noise(torch.empty(1_000_000, dtype=torch.float64), *bounds) / k).exp()
    found = sampled_variation(torch.tensor(k), bounds).item()
    assert found == pytest.approx((samples.std() / samples.mean()).item(), rel=0.01)
    found = sampled_log_mean(torch.tensor(k), bounds).exp().item()
    assert found == pytest.approx(samples.mean().item(), rel=0.005)


def test_variation_of_uncut_noise_and_of_large_k() -> None:
    """Uncut, k = 3.6 varies by 0.31; cut by 0.21. Large k need no special case: CV ∝ 1/k."""
    k = torch.tensor(3.6)
    assert sampled_variation(k, UNCUT).item() == pytest.approx(0.31, abs=0.005)
    assert sampled_variation(k, NOISE_BOUNDS).item() == pytest.approx(0.21, abs=0.005)
    large = sampled_variation(torch.tensor([1e4, 1e6, 1e7]), NOISE_BOUNDS)
    assert (large[1:] * torch.tensor([1e2, 1e3])).tolist() == pytest.approx(
        [large[0].item()] * 2, rel=1e-3
    )


@pytest.mark.parametrize("noise", ["full", "cut", "paper"])
@pytest.mark.parametrize("method", ["babn", "bam"])
def test_noise_is_the_variation_of_the_weights_that_the_layers_sample(
    method: str, noise: str
) -> None:
    """Compared with many samples of log S in a one-layer model, over its valid pairs."""
    flags = {"encoder_layers": 1, "bam_k": 2.0, f"{method}_noise": noise}
    model = zoo.build(f"roberta_{method}", **flags).eval()
    tokens = zoo.pad(zoo.sentences(6)).expand(1000, -1)  # many samples of one sentence
    (layer,) = (m for m in model.modules() if type(m).__name__ == f"{method.upper()}Attention")
    drawn = []
    layer.register_forward_hook(lambda _, __, out: drawn.append(out[:, :, ::4].exp()))
    with torch.no_grad(), collecting_losses(), measuring():
        model(tokens, features_only=True)
        logged = dict(pool_layers(take_losses(model)))["noise"]
        drawn.clear()
        layer.sample_in_eval = True
        torch.manual_seed(1)
        for _ in range(5):
            model(tokens, features_only=True)
    samples = torch.cat(drawn)  # (5000, H, 2, S): only these queries are measured
    expected = (samples.std(dim=0) / samples.mean(dim=0)).mean().item()
    assert (logged.value / logged.count).item() == pytest.approx(expected, rel=0.02)


# keys and queries of alignment


def mass(n: int) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def test_mmd_is_zero_for_equal_clouds_and_near_zero_for_equal_distributions() -> None:
    q = normal(2, 200, 8)
    assert scaled_mmd(q, q, mass(200)).abs().max() < 1e-12
    assert scaled_mmd(q, normal(2, 200, 8, seed=1), mass(200)).abs().max() < 0.02


def test_mmd_does_not_change_when_both_clouds_are_scaled_or_moved() -> None:
    q, k = normal(2, 100, 8), normal(2, 100, 8, seed=1) + 0.7
    expected = scaled_mmd(q, k, mass(100))
    assert expected.min() > 0.05
    for scale, shift in ((1e-3, 0.0), (50.0, 0.0), (1.0, 300.0)):
        found = scaled_mmd(q * scale + shift, k * scale + shift, mass(100))
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_mmd_falls_as_the_clouds_approach() -> None:
    q, noise = normal(1, 200, 8), normal(1, 200, 8, seed=1)
    found = [scaled_mmd(q, noise + gap, mass(200)).item() for gap in (3.0, 1.0, 0.5, 0.25, 0.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 10 * found[3] > 0


def test_mmd_equals_explicit_loops() -> None:
    q, k = normal(1, 5, 3)[0], normal(1, 5, 3, seed=1)[0] * 2
    both = torch.cat([q, k])
    width = torch.stack([(a - b).square().sum() for a in both for b in both]).mean()

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        values = [
            torch.exp(-(x[i] - y[j]).square().sum() / (2 * width))
            for i in range(5)
            for j in range(5)
            if i != j
        ]
        return torch.stack(values).mean()

    expected = kernel(q, q) + kernel(k, k) - 2 * kernel(q, k)
    assert scaled_mmd(q[None], k[None], mass(5)).item() == pytest.approx(expected.item())


def test_spread_is_the_root_of_the_total_variance() -> None:
    x = normal(2, 50, 4) * torch.tensor([1.0, 3.0])[:, None, None]
    expected = x.var(dim=1, correction=0).sum(dim=1).sqrt()
    assert spread(x, mass(50)).tolist() == pytest.approx(expected.tolist())


def test_clouds_of_a_batch_ignore_padding_and_use_few_points() -> None:
    q, k = normal(4, 2, 6, 8), normal(4, 2, 6, 8, seed=1)
    lengths = torch.tensor([6, 3, 5, 1])
    padding = torch.arange(6) >= lengths[:, None]
    (found, enough) = cloud_meters(q, k, padding)
    dirty = cloud_meters(q + 1e3 * padding[:, None, :, None], k - 5, padding)[0]
    rows_q, rows_k = (x.transpose(1, 2)[~padding].transpose(0, 1) for x in (q, k))  # (H, 15, d)
    assert enough == 1
    assert found.mmd.item() == pytest.approx(scaled_mmd(rows_q, rows_k, mass(15)).mean().item())
    assert found.key_spread.item() == pytest.approx(spread(rows_k, mass(15)).mean().item())
    assert dirty.query_spread.item() == pytest.approx(found.query_spread.item())
    none = cloud_meters(q, k, torch.ones_like(padding))
    assert none[1] == 0 == none[0].mmd
    for total in (10, MAX_POINTS, 300, 5000):
        chosen = spread_indices(total, MAX_POINTS, torch.device("cpu"))
        assert len(set(chosen.tolist())) == len(chosen) == min(total, MAX_POINTS)
    halves = torch.bincount(
        spread_indices(4096, MAX_POINTS, torch.device("cpu")) % 32, minlength=32
    )
    assert halves.min() >= 4  # of 8 per position: no position of a sentence of 32 is left out


# heads of repulsive attention


def linear(weight: Tensor) -> nn.Module:
    """A module with heads whose W_Q, W_K and W_V are ``weight`` (H, d, in), without biases."""
    heads, d, width = weight.shape
    module = nn.Module()
    module.num_heads = heads
    for kind in "qkv":
        projection = nn.Linear(width, heads * d)
        projection.weight.data = weight.reshape(heads * d, width).clone()
        projection.bias.data.normal_()  # biases must not count
        setattr(module, f"{kind}_proj", projection)
    return module


def cosine_of(weight: Tensor) -> float:
    return head_cosine(systems_of(find_heads(nn.ModuleDict({"x": linear(weight)})))).item()


def test_head_cosine_of_equal_orthogonal_and_opposite_heads() -> None:
    row = normal(1, 2, 6).float()
    assert cosine_of(row.expand(4, -1, -1)) == pytest.approx(1)
    assert cosine_of(torch.eye(12).view(12, 2, 6)[:4]) == pytest.approx(0)
    assert cosine_of(torch.cat([row, -row])) == pytest.approx(-1)
    assert head_cosine([(1, [torch.zeros(4, 4)])]) is None


def test_feature_meters_ignore_the_length_of_heads_but_dist_does_not() -> None:
    z = normal(3, 5, 4, 8)  # (B, T, H, d)
    keep = torch.rand(3, 5, generator=torch.Generator().manual_seed(2)) > 0.3
    found, longer = (feature_meters(feature_sums(scale * z, keep)) for scale in (1.0, 7.0))
    assert longer.dist_over_norm.item() == pytest.approx(found.dist_over_norm.item())
    assert longer.feature_cosine.item() == pytest.approx(found.feature_cosine.item())
    tokens = z[keep]
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    cosine = [torch.cosine_similarity(tokens[:, i], tokens[:, j]).mean() for i, j in pairs]
    distance = [(tokens[:, i] - tokens[:, j]).norm(dim=-1).mean() for i, j in pairs]
    assert found.feature_cosine.item() == pytest.approx(torch.stack(cosine).mean().item())
    expected = torch.stack(distance).mean() / tokens.norm(dim=-1).mean()
    assert found.dist_over_norm.item() == pytest.approx(expected.item())


def test_feature_meters_of_equal_and_orthogonal_heads() -> None:
    equal = feature_meters(feature_sums(normal(6, 1, 8).expand(6, 4, 8)))
    assert equal.feature_cosine.item() == pytest.approx(1)
    assert equal.dist_over_norm.item() == pytest.approx(0, abs=1e-6)
    orthogonal = feature_meters(feature_sums(3 * torch.eye(8)[:4].expand(6, 4, 8)))
    assert orthogonal.feature_cosine.item() == pytest.approx(0)
    assert orthogonal.dist_over_norm.item() == pytest.approx(math.sqrt(2))


# harm of attendout


def test_groups_have_a_fixed_size_and_only_valid_pairs() -> None:
    valid = torch.rand(3, 4, 6, 6, generator=torch.Generator().manual_seed(0)) > 0.4
    sizes = [math.ceil(0.1 * n) for n in valid.sum(dim=(0, 2, 3)).tolist()]
    groups = [random_groups(valid, 0.1) for _ in range(20)]
    for group in groups:
        assert not (group & ~valid).any()
        assert group.sum(dim=(0, 2, 3)).tolist() == sizes
    assert not torch.equal(groups[0], groups[1])


@pytest.mark.parametrize(("slope", "expected"), [(2.0, 1.0), (-0.5, -1.0)])
def test_correlation_is_one_if_probabilities_are_a_line_of_harms(
    slope: float, expected: float
) -> None:
    """The loss is the sum of the harms of dropped pairs, and its level differs by sentence."""
    valid = torch.ones(2, 5, 6, 6, dtype=torch.bool)
    harm, level = normal(2, 5, 6, 6), 10 * normal(5, seed=3)
    p = 0.4 + slope * harm
    groups = [random_groups(valid, 0.1) for _ in range(64)]
    sums = [torch.stack([(x * g).sum(dim=(0, 2, 3)) for g in groups]) for x in (p, harm)]
    assert correlation(sums[0], sums[1] + level).item() == pytest.approx(expected, abs=1e-6)
    unrelated = normal(2, 5, 6, 6, seed=9)
    other = torch.stack([(unrelated * g).sum(dim=(0, 2, 3)) for g in groups])
    truth = np.corrcoef(unrelated.flatten(), harm.flatten())[0, 1]
    assert correlation(other, sums[1]).item() == pytest.approx(truth, abs=0.25)
    assert correlation(torch.zeros(4, 2), normal(4, 2)) == 0


@dataclass
class Fixed:
    """Drops the same pairs (n, B, T, T) in every pass."""

    drop: Tensor

    def act(self, generator: DropoutGenerator, tokens: Tensor) -> Actions:
        return Actions(self.drop, self.drop.new_zeros(len(self.drop)), self.drop.sum())


@pytest.mark.parametrize(("slope", "low", "high"), [(0.4, 0.8, 1.0), (-0.4, -1.0, -0.8)])
def test_generator_that_knows_the_harms_has_a_high_correlation(
    slope: float, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real model; the harms are those of single pairs, dropped one at a time."""
    model = zoo.build("roberta_attendout", encoder_layers=2)
    for name, parameter in model.named_parameters():
        if "q_proj.weight" in name or "k_proj.weight" in name:
            parameter.data.mul_(3)  # attention that prefers some pairs
    model.double()
    tokens = zoo.pad(zoo.sentences(6, 4))
    (generator,) = (m for m in model.modules() if isinstance(m, DropoutGenerator))
    valid = generator.valid_pairs(tokens).expand(2, -1, -1, -1)

    def loss() -> Tensor:
        log_p = model(tokens)[0].log_softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]
        return -(log_p * tokens.ne(zoo.PAD)).sum(dim=1)

    harm = torch.zeros(valid.shape, dtype=torch.float64)
    methods = [m for m in model.modules() if isinstance(m, AttendOutAttention)]
    with probing(model), switched(methods, "sample_in_eval", True):
        generator.probe = Fixed(torch.zeros_like(valid))
        clean = loss()
        for place in valid.any(dim=1).nonzero().tolist():
            layer, query, key = place
            single = torch.zeros_like(valid)
            single[layer, :, query, key] = True
            generator.probe = Fixed(single & valid)
            harm[layer, :, query, key] = loss() - clean
        generator.probe = None
    p = 0.5 + slope * harm / harm.abs().max()
    monkeypatch.setattr(generator, "forward", lambda _: p.logit())
    model.train()
    before = torch.get_rng_state()
    found = harm_correlation(model, loss, probes=200, share=0.02)
    assert low < found.item() <= high
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert generator.probe is None
    assert not methods[0].sample_in_eval
    assert harm_correlation(zoo.build("roberta"), loss) is None
