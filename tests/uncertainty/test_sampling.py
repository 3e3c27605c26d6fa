"""Samples drawn in batched passes follow the distribution of the attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.distributions import lognormal_variation
from fairseq_stochattn.core.distributions import weibull_variation as full_variation
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.head_hooks import hook_heads
from fairseq_stochattn.methods.babn import attention as belief
from fairseq_stochattn.uncertainty.sampling import (
    is_random,
    repeated,
    sampled_attention,
    sampled_passes,
)

COUNT = 4000
BATCH = {
    "id": torch.arange(2),
    "net_input": {"src_tokens": torch.tensor([[5, zoo.EOS], [9, zoo.EOS]])},  # two keys per row
}
NODES, DENSITY = np.polynomial.legendre.leggauss(60)
# Gauss-Legendre quadrature: an expectation over the noise log(−log(1−u)), with u uniform in
# (0.1, 0.9), is a sum over the values in NOISE, weighted by DENSITY.
NOISE = torch.tensor(np.log(-np.log1p(-(0.5 + 0.4 * NODES))))
DENSITY = torch.tensor(DENSITY / 2)


@dataclass
class Layer:
    """Samples of the weights W and the unnormalised weights S in the first layer of a model."""

    weights: Tensor  # (COUNT, B, H, T, S)
    unnormalised: Tensor  # (COUNT, B, H, T, S)
    mean: Tensor  # (B, H, T, S): E[S], normalised over the keys
    k: Tensor  # (B, H, T, S): shape k of the Weibull distribution of S


def first_layer(arch: str, monkeypatch: pytest.MonkeyPatch, **flags: object) -> Layer:
    """Sample the first layer COUNT times, and read its mean and k in a pass without sampling."""
    model = zoo.build(arch, **flags).eval()
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    (method,) = attention.attention_methods.values()
    with torch.no_grad():
        attention.q_proj.weight.mul_(150)  # so that the (query, key) pairs differ
    shapes, seen, logs = [], [], []
    plain = belief.weibull_attention

    def record_shape(*args: object, **kwargs: object) -> tuple:
        found = plain(*args, **kwargs)
        shapes.append(found[2])
        return found

    monkeypatch.setattr(belief, "weibull_attention", record_shape)
    handle = method.register_forward_hook(lambda module, inputs, output: logs.append(output))

    def forward(inputs: dict) -> Tensor:
        model(**inputs["net_input"])
        return torch.stack([seen.pop(), logs.pop()], dim=1)

    torch.manual_seed(3)
    with hook_heads([attention], lambda heads: seen.append(heads.weights)), torch.no_grad():
        passes = partial(sampled_passes, forward, BATCH)
        with sampled_attention([model]):
            found = torch.cat(list(passes(COUNT, max_tokens=1000))).double()
        shapes.clear()
        (mean,) = passes(1)
    handle.remove()
    k = shapes[0].double() if shapes else torch.full_like(mean[0, :, 0], flags.get("bam_k", 0.0))
    return Layer(found[:, :, 0], found[:, :, 1].exp(), mean[0, :, 0].double(), k.double())


WEIBULL = {
    "roberta_bam": {"bam_k": 2.0, "bam_noise": "paper"},
    "roberta_babn": {"babn_noise": "paper"},
}


@pytest.mark.parametrize("arch", WEIBULL)
def test_mean_of_the_weights_is_the_posterior_mean(arch: str, monkeypatch) -> None:
    """With two keys, W = 1/(1 + S₂/S₁), whose mean is an integral over the noise of both keys."""
    layer = first_layer(arch, monkeypatch, **WEIBULL[arch])
    log_scale = layer.mean.log() - torch.lgamma(1 + 1 / layer.k)
    log_s = log_scale[..., None] + NOISE / layer.k[..., None]  # (B, H, T, 2, nodes)
    first = torch.sigmoid(log_s[..., 0, :, None] - log_s[..., 1, None, :])
    expected = torch.einsum("...ij,i,j->...", first, DENSITY, DENSITY)
    found = layer.weights[..., 0]
    error = found.std(dim=0) / math.sqrt(COUNT)
    assert (found.mean(dim=0) - expected).abs().le(5 * error).all()
    assert found.std(dim=0).min() > 0.02


def variation(samples: Tensor) -> Tensor:
    """std/mean over the samples."""
    return samples.std(dim=0) / samples.mean(dim=0)


def weibull_variation(k: Tensor) -> Tensor:
    """std/mean of a Weibull variable with shape k, sampled from uniform u in (0.1, 0.9)."""
    first, second = ((DENSITY * (n * NOISE / k[..., None]).exp()).sum(dim=-1) for n in (1, 2))
    return (second / first**2 - 1).sqrt()


def test_variation_of_bam_is_constant(monkeypatch) -> None:
    """std/mean depends only on k for Weibull S, and is √(exp(s²) − 1) for lognormal S."""
    full = math.sqrt(math.gamma(2) / math.gamma(1.5) ** 2 - 1)
    cut = weibull_variation(torch.tensor(2.0)).item()
    for noise, expected in (("paper", cut), ("full", full)):
        layer = first_layer("roberta_bam", monkeypatch, bam_k=2.0, bam_noise=noise)
        assert variation(layer.unnormalised).numpy() == pytest.approx(expected, rel=0.06)
    flags = {"bam_distribution": "lognormal", "bam_s": 0.3}
    lognormal = variation(first_layer("roberta_bam", monkeypatch, **flags).unnormalised)
    assert lognormal.numpy() == pytest.approx(lognormal_variation(0.3), rel=0.07)


def test_variation_of_babn_follows_the_shape_of_each_pair(monkeypatch) -> None:
    for noise, law, tolerance in (
        ("paper", weibull_variation, 0.06),
        ("full", full_variation, 0.1),
    ):
        flags = {"babn_noise": noise, "babn_start": "identity"}
        layer = first_layer("roberta_babn", monkeypatch, **flags)
        found, expected = variation(layer.unnormalised), law(layer.k)
        assert found.numpy() == pytest.approx(expected.numpy(), rel=tolerance)
        assert expected.max() > 1.2 * expected.min()


def test_copies_of_a_row_are_adjacent() -> None:
    sample = {
        "id": torch.tensor([4, 2]),
        "target": torch.tensor([1, 0]),
        "net_input1": {"src_tokens": torch.tensor([[7, 8], [9, 1]]), "flag": True},
    }
    found = repeated(sample, 3)
    assert set(found) == {"net_input1"}
    assert found["net_input1"]["src_tokens"][:, 0].tolist() == [7, 7, 7, 9, 9, 9]
    assert found["net_input1"]["flag"] is True


def test_passes_are_as_large_as_max_tokens_allows() -> None:
    sizes = []

    def forward(inputs: dict) -> Tensor:
        tokens = inputs["net_input"]["src_tokens"]
        sizes.append(len(tokens))
        return tokens

    found = torch.cat(list(sampled_passes(forward, BATCH, 5, max_tokens=9)))
    assert sizes == [4, 4, 2]  # two copies of 2 × 2 tokens are 8
    assert found.shape == (5, 2, 2)
    assert found.eq(BATCH["net_input"]["src_tokens"]).all()
    sizes.clear()
    assert len(list(sampled_passes(forward, BATCH, 3, max_tokens=1))) == 3
    assert len(list(sampled_passes(forward, BATCH, 3))) == 1


def outputs(model: nn.Module) -> Tensor:
    tokens = BATCH["net_input"]["src_tokens"].repeat(2, 1)
    with torch.no_grad():
        return model(tokens)[0].view(2, -1)


def test_dropout_is_sampled_only_within_the_block() -> None:
    """Monte Carlo dropout works in models of plain fairseq and of this package."""
    for arch in ("roberta", "roberta_deterministic", "roberta_bam"):
        model = zoo.build(arch, dropout=0.2).eval()
        assert is_random(model, dropout=True)
        assert is_random(model) == (arch == "roberta_bam")
        with sampled_attention([model], dropout=True):
            first, second = outputs(model)
        assert not torch.allclose(first, second, atol=1e-3)
        dropouts = [x for x in model.modules() if isinstance(x, FairseqDropout)]
        assert not any(x.apply_during_inference for x in dropouts)
        first, second = outputs(model)
        assert torch.equal(first, second)


def classify(model: nn.Module, batch: dict) -> Tensor:
    head = {"classification_head_name": "sentence_classification_head"}
    return model(**batch["net_input"], features_only=True, **head)[0]


def translate(model: nn.Module, batch: dict) -> Tensor:
    return model(**batch["net_input"])[0]


SOURCE = {"src_tokens": torch.tensor([[5, 7, 9, 8, zoo.EOS]])}
PAIR = {
    **SOURCE,
    "src_lengths": torch.tensor([5]),
    "prev_output_tokens": torch.tensor([[zoo.EOS, 11, 12]]),
}
DEEP_LSTM = {"encoder_layers": 3, "decoder_layers": 3}
PLAIN = {
    "roberta": (partial(zoo.build, "roberta", dropout=0.2), SOURCE),
    "transformer": (partial(zoo.build, "transformer", dropout=0.2), PAIR),
    "lstm": (partial(zoo.build, "lstm", dropout=0.2, **DEEP_LSTM), PAIR),
    "self_attentive": (partial(zoo.classifier, dropout=0.4), SOURCE),
}


@pytest.mark.parametrize("arch", PLAIN)
@torch.no_grad()
def test_monte_carlo_dropout_is_that_of_training_in_every_backbone(arch: str) -> None:
    """Mean and spread over the copies equal those in training mode, and copies are independent."""
    build, inputs = PLAIN[arch]
    model, count = build().eval(), 3000
    forward = partial(classify if arch == "self_attentive" else translate, model)
    batch = {"id": torch.arange(1), "net_input": inputs}
    with sampled_attention([model], dropout=True):
        others = (nn.modules.dropout._DropoutNd, nn.RNNBase)
        assert all(isinstance(x, others) for x in model.modules() if x.training)
        drawn = torch.cat(list(sampled_passes(forward, batch, count))).flatten(1)  # (K, outputs)
    assert not any(module.training for module in model.modules())
    model.train()
    expected = torch.cat(list(sampled_passes(forward, batch, count))).flatten(1)
    random = expected.std(dim=0) > 0  # RoBERTa's logit of <pad> is always 0
    assert random.float().mean() > 0.9
    drawn, expected = drawn[:, random], expected[:, random]
    spread = expected.std(dim=0)
    # Standard errors of the difference of two means, and of a ratio of standard deviations.
    assert (
        (drawn.mean(dim=0) - expected.mean(dim=0)).abs() < 6 * spread / (count / 2) ** 0.5
    ).all()
    ratio = (drawn.std(dim=0) / spread).mean().item()
    assert ratio == pytest.approx(1, abs=0.05)
    noise = (drawn - drawn.mean(dim=0)) / drawn.std(dim=0)
    correlation = (noise[0::2] * noise[1::2]).mean(dim=0)
    assert (correlation.abs() < 6 / (count / 2) ** 0.5).all()


def test_sampling_a_deterministic_model_is_an_error() -> None:
    model = zoo.build("roberta_deterministic").eval()
    assert not is_random(model, dropout=True)  # its dropout is 0
    with pytest.raises(InputError, match="nothing to sample"), sampled_attention([model], True):
        pass
