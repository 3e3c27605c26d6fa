"""Samples in batched passes follow the distribution of the attention."""

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
from fairseq_stochattn.attention import belief
from fairseq_stochattn.attention.watching import watching
from fairseq_stochattn.distributions import lognormal_variation
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.sampling import is_random, repeated, sampled_attention, sampled_passes

COUNT = 4000
BATCH = {
    "id": torch.arange(2),
    "net_input": {"src_tokens": torch.tensor([[5, zoo.EOS], [9, zoo.EOS]])},  # two keys a row
}
NODES, DENSITY = np.polynomial.legendre.leggauss(60)
# An expectation over the noise log(−log(1−u)), u ~ U(0.1, 0.9), is a sum over these.
NOISE = torch.tensor(np.log(-np.log1p(-(0.5 + 0.4 * NODES))))
DENSITY = torch.tensor(DENSITY / 2)


@dataclass
class Layer:
    """The first layer of a model under samples: W, S, and what S is distributed by."""

    weights: Tensor  # (COUNT, B, H, T, S)
    unnormalised: Tensor
    mean: Tensor  # (B, H, T, S): W at the mean of S, so the ratios of E[S]
    k: Tensor  # (B, H, T, S), the Weibull's shape


def first_layer(arch: str, monkeypatch: pytest.MonkeyPatch, **flags: object) -> Layer:
    model = zoo.build(arch, **flags).eval()
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    (method,) = attention.attention_methods.values()
    with torch.no_grad():
        attention.q_proj.weight.mul_(150)  # so that the cells differ
    shapes, seen, logs = [], [], []
    plain = belief.weibull_attention

    def noted(*args: object, **kwargs: object) -> tuple:
        found = plain(*args, **kwargs)
        shapes.append(found[2])
        return found

    monkeypatch.setattr(belief, "weibull_attention", noted)
    handle = method.register_forward_hook(lambda module, inputs, output: logs.append(output))

    def forward(inputs: dict) -> Tensor:
        model(**inputs["net_input"])
        return torch.stack([seen.pop(), logs.pop()], dim=1)

    torch.manual_seed(3)
    with watching([attention], lambda heads: seen.append(heads.weights)), torch.no_grad():
        passes = partial(sampled_passes, forward, BATCH)
        with sampled_attention([model]):
            found = torch.cat(list(passes(COUNT, max_tokens=1000))).double()
        shapes.clear()
        (mean,) = passes(1)
    handle.remove()
    k = shapes[0].double() if shapes else torch.full_like(mean[0, :, 0], flags.get("bam_k", 0.0))
    return Layer(found[:, :, 0], found[:, :, 1].exp(), mean[0, :, 0].double(), k.double())


WEIBULL = {"roberta_bam": {"bam_k": 2.0}, "roberta_babn": {}}


@pytest.mark.parametrize("arch", WEIBULL)
def test_mean_of_the_weights_is_the_posterior_mean(arch: str, monkeypatch) -> None:
    """Of two keys W = 1/(1 + S₂/S₁): its mean is an integral over two noises."""
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
    return samples.std(dim=0) / samples.mean(dim=0)


def cut_variation(k: Tensor) -> Tensor:
    """Standard deviation over mean of a Weibull whose u stays within (0.1, 0.9)."""
    first, second = ((DENSITY * (n * NOISE / k[..., None]).exp()).sum(dim=-1) for n in (1, 2))
    return (second / first**2 - 1).sqrt()


def test_variation_of_bam_is_one_constant(monkeypatch) -> None:
    """That of the shape for Weibull, √(exp(s²) − 1) for lognormal weights: in every cell."""
    weibull = variation(first_layer("roberta_bam", monkeypatch, bam_k=2.0).unnormalised)
    assert weibull.numpy() == pytest.approx(cut_variation(torch.tensor(2.0)).item(), rel=0.05)
    flags = {"bam_distribution": "lognormal", "bam_s": 0.3}
    lognormal = variation(first_layer("roberta_bam", monkeypatch, **flags).unnormalised)
    assert lognormal.numpy() == pytest.approx(lognormal_variation(0.3), rel=0.07)


def test_variation_of_babn_is_that_of_each_cell(monkeypatch) -> None:
    layer = first_layer("roberta_babn", monkeypatch)
    found, expected = variation(layer.unnormalised), cut_variation(layer.k)
    assert found.numpy() == pytest.approx(expected.numpy(), rel=0.06)
    assert expected.max() > 1.2 * expected.min()


def test_copies_stay_beside_each_other() -> None:
    sample = {
        "id": torch.tensor([4, 2]),
        "target": torch.tensor([1, 0]),
        "net_input1": {"src_tokens": torch.tensor([[7, 8], [9, 1]]), "flag": True},
    }
    found = repeated(sample, 3)
    assert set(found) == {"net_input1"}
    assert found["net_input1"]["src_tokens"][:, 0].tolist() == [7, 7, 7, 9, 9, 9]
    assert found["net_input1"]["flag"] is True


def test_passes_are_as_large_as_allowed() -> None:
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


def test_dropout_is_sampled_where_asked_for() -> None:
    """Monte Carlo dropout of plain fairseq, and of ours beside the attention; then off again."""
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


def test_nothing_random_is_told() -> None:
    model = zoo.build("roberta_deterministic").eval()
    assert not is_random(model, dropout=True)  # its dropout is 0
    with pytest.raises(UsageError, match="nothing to sample"), sampled_attention([model], True):
        pass
