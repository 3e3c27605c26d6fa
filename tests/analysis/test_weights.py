"""Sampled attention weights, their mean and their std/mean equal direct computations."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.analysis.attention_plot import attention_maps
from fairseq_stochattn.analysis.heads import show_heads
from fairseq_stochattn.analysis.sentences import Sentence
from fairseq_stochattn.analysis.weights import WeightSamples, find_attention, sample_weights
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.head_hooks import hook_heads
from fairseq_stochattn.uncertainty.sampling import sampled_attention


def sentence(source: int = 5, target: int = 4) -> Sentence:
    """A random sentence with ``source`` source tokens and ``target`` target tokens."""
    torch.manual_seed(4)
    rows = [torch.randint(4, zoo.VOCABULARY, (1, n)) for n in (source, target)]
    net_input = {
        "src_tokens": rows[0],
        "src_lengths": torch.tensor([source]),
        "prev_output_tokens": rows[1],
    }
    return Sentence("", net_input, ["s"] * source, ["r"] * target, ["w"] * target)


def test_mean_and_std_are_those_of_the_weights_of_the_forward_pass() -> None:
    """One pass over K copies gives the same statistics as a loop in double precision."""
    model = zoo.build("transformer_babn").eval()
    groups = find_attention(model)
    torch.manual_seed(1)
    found = sample_weights(model, sentence(), groups, samples=6)
    assert [(x.site, x.layer) for x in groups if x.site == "cross"] == [
        ("cross", i) for i in range(3)
    ]
    for group, drawn in zip(groups, found, strict=True):
        seen: list[Tensor] = []
        torch.manual_seed(1)
        hook = hook_heads([group.module], lambda heads, seen=seen: seen.append(heads.weights))
        with sampled_attention([model]), torch.no_grad(), hook:
            model(**sentence().copies(6))
        (weights,) = seen  # (K, H, T, S)
        assert torch.equal(drawn.weights.float(), weights)
        for pair in ((0, 0, 0), (1, 3, 2)):  # head, query, key
            values = [float(w[pair]) for w in weights.double()]
            mean = sum(values) / 6
            std = math.sqrt(sum((x - mean) ** 2 for x in values) / 5)
            assert drawn.mean()[pair].item() == pytest.approx(mean, rel=1e-9)
            assert drawn.std()[pair].item() == pytest.approx(std, rel=1e-6, abs=1e-12)
        averaged = drawn.averaged()
        assert torch.allclose(averaged.weights[:, 0], weights.double().mean(dim=1))
    assert any(drawn.std().max() > 0.01 for drawn in found)


@pytest.mark.parametrize("arch", ["transformer", "lstm"])
def test_plain_attention_has_one_sample_equal_to_the_weights_of_fairseq(arch: str) -> None:
    model = zoo.build(arch).eval()
    with torch.no_grad():
        _, attended = model(**sentence().net_input)
    if arch == "transformer":
        (attended,) = attended["attn"]  # (B, T, S): mean over the heads of the last layer
    show_heads(model)
    groups = [group for group in find_attention(model) if group.site == "cross"]
    drawn = sample_weights(model, sentence(), groups[-1:], samples=20)[0]
    assert len(drawn.weights) == 1
    assert torch.allclose(drawn.mean().mean(dim=0).float(), attended[0], atol=1e-6)
    assert drawn.std().abs().max() == 0


def test_weights_of_an_lstm_cover_all_target_tokens() -> None:
    model = zoo.build("lstm_babn").eval()
    (drawn,) = sample_weights(model, sentence(), find_attention(model), samples=5)
    assert drawn.weights.shape == (5, 1, 4, 5)
    assert torch.allclose(drawn.weights.sum(dim=-1), torch.ones(5, 1, 4).double(), atol=1e-6)
    assert drawn.std().min() > 0


def first_layer_ratio(model: nn.Module) -> Tensor:
    """std/mean of the unnormalised weights in the first encoder layer, (H, T, S)."""
    (group,) = [x for x in find_attention(model) if (x.site, x.layer) == ("encoder", 0)]
    (drawn,) = sample_weights(model.eval(), sentence(), [group], samples=6000)
    return drawn.ratio(unnormalised=True)


@pytest.mark.parametrize("noise", ["full", "paper"])
@pytest.mark.parametrize("distribution", ["weibull", "lognormal"])
def test_unnormalised_ratio_of_bam_is_constant(distribution: str, noise: str) -> None:
    """Zhang et al. 2021 (BABN), Fig. 3. S are the unnormalised weights. If S is lognormal with
    width s, its std/mean is √(exp(s²) − 1). A Weibull variable with shape k is sampled as
    S ∝ (−log(1−u))^(1/k) with u uniform in (0, 1), or in (0.1, 0.9) as in the paper, so its moments
    are integrals over u."""
    k, s = 3.0, 0.4
    low, high = (0.1, 0.9) if noise == "paper" else (0.0, 1 - 1e-6)
    u = torch.linspace(low, high, 100_001).double()
    first, second = ((-torch.log1p(-u)).pow(m / k).mean() for m in (1, 2))
    theory = {
        "weibull": (second / first**2 - 1).sqrt().item(),
        "lognormal": math.sqrt(math.expm1(s**2)),
    }
    flags = {"bam_distribution": distribution, "bam_noise": noise, "bam_k": k, "bam_s": s}
    model = zoo.build("transformer_bam", **flags)
    ratio = first_layer_ratio(model)
    assert ratio.numpy() == pytest.approx(theory[distribution], rel=0.06)


def test_unnormalised_ratio_of_babn_differs_between_query_key_pairs() -> None:
    model = zoo.build("transformer_babn")
    for name, parameter in model.named_parameters():
        if "attention_methods" in name or "shared" in name:
            torch.nn.init.normal_(
                parameter
            )  # before training, std/mean is almost equal for all pairs
    ratio = first_layer_ratio(model)
    assert ratio.max() > 1.5 * ratio.min()


def test_ratio_of_blocked_pairs_is_nan() -> None:
    model = zoo.build("transformer_babn").eval()
    causal = [group for group in find_attention(model) if group.site == "decoder"][:1]
    (drawn,) = sample_weights(model, sentence(), causal, samples=4)
    future = torch.ones(4, 4).triu(1).bool()
    assert drawn.ratio()[:, future].isnan().all()
    assert drawn.ratio()[:, ~future].isfinite().all()
    assert drawn.ratio()[:, 0, 0].max() < 1e-6  # the only visible key has weight 1 in every sample


def test_unnormalised_ratio_does_not_overflow() -> None:
    log_s = torch.tensor([400.0, 401.0]).double().view(2, 1, 1, 1)
    drawn = WeightSamples(torch.ones(2, 1, 1, 1).double(), log_s)
    s = torch.tensor([1.0, math.e]).double()
    assert drawn.ratio(unnormalised=True).item() == pytest.approx((s.std() / s.mean()).item())


@pytest.mark.parametrize("pairs", [False, True])
def test_weights_of_the_self_attentive_classifier(pairs: bool) -> None:
    """One row per head; in a pair, the weights of each sentence add up to 1."""
    model = zoo.classifier(sentence_pairs=pairs).eval()
    tokens = torch.cat(zoo.sentences(9, 7)) if pairs else zoo.sentences(9)[0]
    source = list(map(str, tokens.tolist()))
    text = Sentence("", {"src_tokens": tokens[None]}, source, [], [])
    groups = find_attention(model, pooling=True)
    (drawn,) = sample_weights(model, text, groups, samples=5)
    expected = model(tokens[None])[1]["attention"].sum(dim=0)  # (M, n)
    torch.testing.assert_close(drawn.mean()[:, 0].float(), expected)
    sums = drawn.mean().sum(dim=(1, 2))
    torch.testing.assert_close(sums, torch.full_like(sums, 2.0 if pairs else 1.0))
    maps = attention_maps(SimpleNamespace(model=model), text, heads="0,2")
    assert [x.queries for x in maps] == [["head 0", "head 2"]]
    assert np.allclose(maps[0].mean, expected[[0, 2]].detach().numpy())
    with pytest.raises(InputError, match="no queries attend to keys"):
        find_attention(model)
