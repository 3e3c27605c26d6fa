"""BABN equals its equations: upward chain, KL, gradients, padding, parameter counts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.distributions import kl_weibull_gamma
from fairseq_stochattn.core.losses import collecting_losses, take_losses
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
SCORES = pytest.mark.parametrize("scores", ["normalized", "raw"])


def babn_layers(model: nn.Module, site: str) -> list[nn.Module]:
    """The attention modules of a site, first layer first."""
    owner = model.encoder if site == "encoder" else model.decoder
    owner = getattr(owner, "sentence_encoder", owner)
    name = "encoder_attn" if site == "cross" else "self_attn"
    return [getattr(layer, name) for layer in owner.layers]


def recorded(model: nn.Module, site: str) -> list[tuple[Tensor, object]]:
    """A list that later receives the arguments (logits, context) of the method of every layer."""
    calls: list[tuple[Tensor, object]] = []
    for attention in babn_layers(model, site):
        method = attention.attention_methods["babn"]
        method.register_forward_pre_hook(lambda _, args: calls.append(args))
    return calls


def upward_by_hand(phi: Tensor, mask: Tensor, f3: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """The states h^1 … h^L by explicit loops (Zhang et al. 2021, §3), for one sentence and head.

    phi (T, S) are the logits of the first layer, mask (T, S) is True at visible pairs, and f3 has
    the weight and bias of the map f3 of every layer.
    """
    h = torch.zeros_like(phi)  # h^{L+1}
    for t in range(phi.size(0)):
        visible = [s for s in range(phi.size(1)) if mask[t, s]]
        total = sum(math.exp(phi[t, s]) for s in visible)
        for s in visible:
            h[t, s] = math.exp(phi[t, s]) / total
    states = []
    for weight, bias in reversed(f3):  # l = L … 1
        next_h = torch.zeros_like(h)
        for t in range(h.size(0)):
            for s in range(h.size(1)):
                if not mask[t, s]:
                    continue
                if s < weight.size(0):
                    width = min(weight.size(0), h.size(1))
                    mixed = sum(weight[s, j] * h[t, j] for j in range(width)) + bias[s]
                else:
                    mixed = h[t, s]  # keys after the first max_positions stay unchanged
                next_h[t, s] = math.log1p(math.exp(mixed))
        states.append(next_h)
        h = next_h
    return states[::-1]


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("positions", [5, 64])
def test_upward_chain_equals_the_equations(site: str, positions: int) -> None:
    model = zoo.build("transformer_babn", babn_max_positions=positions).double().eval()
    calls = recorded(model, site)
    zoo.run(model, "transformer", SOURCES, TARGETS)
    logits, context = calls[0]
    stack = context.stack
    chain = stack.shared["babn"].chain
    f3 = [(m.weight[0].detach(), m.bias[0].detach()) for m in chain.f3]
    for sentence, head in ((0, 0), (1, 1), (2, 0)):
        mask = context.valid[sentence, 0].clone()
        rows = mask.any(dim=1)
        expected = upward_by_hand(logits[sentence, head].detach(), mask, f3)
        for layer, by_hand in enumerate(expected):
            found = stack.state["babn"].states[layer][sentence, head]
            torch.testing.assert_close(found[rows], by_hand[rows], rtol=1e-9, atol=1e-9)


def test_upward_chain_depends_on_the_first_layer_only() -> None:
    """The state h of every layer is computed before the second layer has logits."""
    model = zoo.build("roberta_babn").eval()
    first, second = (a.attention_methods["babn"] for a in babn_layers(model, "encoder")[:2])
    stack = model.encoder.sentence_encoder.attention_stacks["encoder"]
    layers: list[list[int]] = []
    first.register_forward_hook(lambda *_: layers.append(sorted(stack.state["babn"].states)))
    before: dict[int, Tensor] = {}
    second.register_forward_pre_hook(
        lambda *_: before.update({n: x.clone() for n, x in stack.state["babn"].states.items()})
    )
    zoo.run(model, "roberta", SOURCES, TARGETS)
    assert layers == [[0, 1, 2]]
    assert all(torch.equal(stack.state["babn"].states[n], x) for n, x in before.items())


@SCORES
@pytest.mark.parametrize("beta", [None, 0.7])
def test_kl_equals_the_formula_on_valid_pairs(scores: str, beta: float | None) -> None:
    """The prior is Gamma(c·m, c), or with a rate of its own Gamma(c·m, β)."""
    flags = {"babn_scores": scores, "babn_prior_strength": 4.0, "babn_beta": beta}
    model = zoo.build("transformer_babn", babn_sigma=0.2, **flags).double().eval()
    calls = recorded(model, "cross")
    with collecting_losses():
        zoo.run(model, "transformer", SOURCES, TARGETS, left=True)
    for attention, (logits, context) in zip(babn_layers(model, "cross"), calls, strict=True):
        method = attention.attention_methods["babn"]
        phi = logits if scores == "raw" else context.mask(logits).log_softmax(-1).clamp(min=-1e3)
        f1, f2 = context.stack.state["babn"].apply(method.maps, method.layer, logits.size(1))
        k = 1.5 * F.softplus(f1) + phi.exp() + 0.05
        scale = 0.2 * F.softplus(f2) + phi.exp() / torch.lgamma(1 + 1 / k).exp()
        alpha = (4.0 * method.prior(context)).clamp(min=1e-8)
        kl = kl_weibull_gamma(k, scale.log(), alpha, beta or 4.0)
        valid = context.valid.expand_as(kl)
        torch.testing.assert_close(method.losses["kl"].value, kl[valid].sum().float())
        assert method.losses["kl"].count == valid.sum()
        assert context.valid.sum() == sum(
            len(s) * len(t) for s, t in zip(SOURCES, TARGETS, strict=True)
        )


@pytest.mark.parametrize("method", ["babn", "bam"])
def test_the_prior_sees_no_future_key(method: str) -> None:
    """For every query, its mean adds up to 1 over the visible keys and ignores the others."""
    model = zoo.build(f"transformer_lm_{method}", seed=2).double().eval()
    contexts: list[object] = []
    attention = model.decoder.layers[0].self_attn.attention_methods[method]
    attention.register_forward_pre_hook(lambda _, args: contexts.append(args[1]))
    sentence = torch.arange(4, 12)
    changed = sentence.clone()
    changed[5:7] += 3  # the model sees these two tokens last: the last one is moved to the front
    for tokens in (sentence, changed):
        zoo.run(model, "transformer_lm", [tokens], [tokens])
    means = [attention.prior(context) for context in contexts]  # (1, H, T, S)
    assert means[0].shape == (1, means[0].size(1), 8, 8)
    torch.testing.assert_close(means[0][..., :6, :], means[1][..., :6, :], rtol=0, atol=0)
    assert (means[0][..., 6:, :] - means[1][..., 6:, :]).abs().max() > 1e-6
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    assert (means[0][..., ~visible] == 0).all()
    torch.testing.assert_close(means[0].sum(-1), torch.ones_like(means[0][..., 0]))


def shapes_of(model: nn.Module, site: str) -> list[Tensor]:
    """The Weibull shapes k of every layer at valid pairs."""
    calls = recorded(model, site)
    zoo.run(model, "transformer", SOURCES, TARGETS)
    found = []
    for attention, (logits, context) in zip(babn_layers(model, site), calls, strict=True):
        method = attention.attention_methods["babn"]
        f1 = context.stack.state["babn"].apply(method.maps, method.layer, logits.size(1))[0]
        k = 1.5 * F.softplus(f1) + context.mask(logits).softmax(-1) + 0.05
        found.append(k[context.valid.expand_as(k)])
    return found


@pytest.mark.parametrize("upward", ["positions", "heads"])
def test_with_an_even_start_all_layers_are_equally_noisy(upward: str) -> None:
    """k starts between 1 and 2 in every layer; from the identity it falls from layer to layer."""
    flags = {"babn_upward": upward, "encoder_layers": 6}
    even = shapes_of(zoo.build("transformer_babn", babn_start="even", **flags).eval(), "encoder")
    assert all(1 < k.mean() < 2 for k in even)
    assert max(k.mean() for k in even) / min(k.mean() for k in even) < 1.15
    start = zoo.build("transformer_babn", babn_start="identity", **flags).eval()
    identity = [k.mean() for k in shapes_of(start, "encoder")]
    assert identity[0] > 1.3 * identity[-1]


@pytest.mark.parametrize("scores", ["normalized", "raw"])
@pytest.mark.parametrize(("noise", "same"), [("full", True), ("cut", True), ("paper", False)])
def test_the_weights_at_test_time_are_the_mean_of_what_is_sampled(
    noise: str, same: bool, scores: str
) -> None:
    """The mean over samples of S is E[S] at test time, but not with the paper's noise."""
    flags = {"babn_noise": noise, "babn_scores": scores, "babn_rho": 0.5}
    model = zoo.build("roberta_babn", encoder_layers=1, babn_sigma=0.1, **flags).eval()
    (attention,) = babn_layers(model, "encoder")
    method = attention.attention_methods["babn"]
    outputs: list[Tensor] = []
    method.register_forward_hook(lambda _, __, out: outputs.append(out.double().exp()))
    tokens = zoo.pad(zoo.sentences(6)).expand(4000, -1)
    torch.manual_seed(3)
    with torch.no_grad():
        model(tokens[:1], features_only=True)
        method.sample_in_eval = True
        for _ in range(10):
            model(tokens, features_only=True)
    mean = outputs[0][0]
    ratio = torch.cat(outputs[1:]).mean(0) / mean
    assert ((ratio - 1).abs().max().item() < 0.05) == same


def kl_of(model: nn.Module, backbone: str, width: int, left: bool) -> list[Tensor]:
    """The KL of every layer, with batches padded to ``width``."""
    with collecting_losses():
        zoo.run(model, backbone, SOURCES, TARGETS, left=left, width=width)
    return [loss.value for name, loss in take_losses(model) if name == "kl"]


@pytest.mark.parametrize("backbone", ["transformer", "roberta", "transformer_lm"])
@pytest.mark.parametrize("method", ["babn", "bam"])
def test_kl_ignores_padding(backbone: str, method: str) -> None:
    longer = {"max_source_positions": 128, "max_positions": 128, "max_target_positions": 128}
    known = zoo.TINY[backbone].keys() & longer.keys()
    model = zoo.build(f"{backbone}_{method}", **{name: longer[name] for name in known}).eval()
    reference = kl_of(model, backbone, 0, False)
    for left in (False, True):
        found = kl_of(model, backbone, 59, left)
        torch.testing.assert_close(found, reference, rtol=2e-5, atol=1e-4)


@SCORES
@pytest.mark.parametrize("arch", ["transformer_babn", "transformer_bam"])
def test_kl_has_a_gradient_for_every_parameter(arch: str, scores: str) -> None:
    method = arch.split("_")[1]
    model = zoo.build(arch, **{f"{method}_scores": scores}).double().train()
    zoo.run(model, "transformer", SOURCES, TARGETS)
    sum(loss.value for name, loss in take_losses(model) if name == "kl").backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in gradients.items():
        reached = is_plugin_parameter(name) or "q_proj.weight" in name or "k_proj.weight" in name
        # This bias adds a constant to all keys, which a softmax over the keys cancels.
        if reached and not name.endswith("prior.f2.bias"):
            assert gradient is not None, name
            assert gradient.abs().sum() > 0, name


def test_ablations_of_table_8() -> None:
    """With σ = 0 there is no map f2, and the output is that of the plain model.

    With ρ = 0, the shape k depends on the scores only, so the map f1 has no gradient.
    """
    model = zoo.build("transformer_babn", babn_sigma=0.0)
    assert {m.weight.size(0) for n, m in model.named_modules() if n.endswith("babn.maps")} == {1}
    plain = zoo.build("transformer")
    model.load_state_dict(plain.state_dict())
    found = zoo.run(model.eval(), "transformer", SOURCES, TARGETS)
    expected = zoo.run(plain.eval(), "transformer", SOURCES, TARGETS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    model = zoo.build("transformer_babn", babn_rho=0.0).train()
    zoo.run(model, "transformer", SOURCES, TARGETS).sum().backward()
    f1 = [p.grad for n, p in model.named_parameters() if n.endswith("babn.maps.weight")]
    assert all(gradient[0].abs().sum() == 0 for gradient in f1)


@pytest.mark.parametrize("backbone", ["transformer", "transformer_lm", "lstm", "roberta"])
@SCORES
def test_deterministic_checkpoint_loads_into_babn(backbone: str, scores: str) -> None:
    plain = zoo.build(backbone, seed=5).eval()
    ours = zoo.build(f"{backbone}_babn", babn_scores=scores, babn_sigma=1e-12).eval()
    ours.load_state_dict(plain.state_dict(), strict=True)
    found, expected = (zoo.run(m, backbone, SOURCES, TARGETS) for m in (ours, plain))
    rows = SOURCES if backbone == "roberta" else TARGETS
    found, expected = (zoo.non_padding_outputs(x, backbone, rows) for x in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backbone", ["transformer", "transformer_lm", "roberta", "lstm"])
@pytest.mark.parametrize(
    "flags",
    [{"babn_max_positions": 3}, {"babn_upward": "heads"}, {"babn_share_layers": True}],
    ids=["longer than max_positions", "heads", "shared"],
)
def test_outputs_of_all_variants_depend_only_on_the_sentence(backbone: str, flags: dict) -> None:
    """They depend neither on other sentences in the batch nor on the side of the padding.

    This holds for sentences longer than max_positions too. All parameters have finite gradients.
    """
    model = zoo.build(f"{backbone}_babn", babn_sigma=0.3, **flags).eval()
    rows = SOURCES if backbone == "roberta" else TARGETS
    found = [
        zoo.non_padding_outputs(
            zoo.run(model, backbone, SOURCES, TARGETS, left), backbone, rows, left
        )
        for left in (False, True)
    ]
    alone = [
        zoo.non_padding_outputs(zoo.run(model, backbone, [s], [t]), backbone, [r])
        for s, t, r in zip(SOURCES, TARGETS, rows, strict=True)
    ]
    for x in found:
        torch.testing.assert_close(x, torch.cat(alone), rtol=1e-5, atol=3e-6)
    model.train()
    out = zoo.run(model, backbone, SOURCES, TARGETS).sum()
    loss = out + sum(term.value for _, term in take_losses(model))
    loss.backward()
    ours = [p for n, p in model.named_parameters() if is_plugin_parameter(n)]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours)


def test_a_large_sigma_changes_the_mean() -> None:
    """With a large σ the output depends on f2. Without this, the test above would prove nothing."""
    outs = [
        zoo.run(zoo.build("roberta_babn", babn_sigma=s).eval(), "roberta", SOURCES, TARGETS)
        for s in (0.3, 1e-12)
    ]
    assert (outs[0] - outs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["babn", "bam"])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_logits_in_half_precision_stay_finite(method: str, size: float) -> None:
    model = zoo.build(f"transformer_{method}", **{f"{method}_scores": "raw"})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("q_proj.weight"):
                parameter.mul_(size)
    model = model.half().train()
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        found.append(zoo.run(model, "transformer", SOURCES, TARGETS))
        terms = [term.value for _, term in take_losses(model)]
        assert all(term.isfinite() for term in terms)
    assert found[0].isfinite().all()
    assert torch.equal(*found)


def test_lstm_prior_is_computed_once_per_forward_pass() -> None:
    model = zoo.build("lstm_babn").train()
    prior = model.decoder.attention.attention_methods["babn"].prior
    calls: list[int] = []
    prior.register_forward_hook(lambda *_: calls.append(1))
    zoo.run(model, "lstm", SOURCES, TARGETS)
    assert len(calls) == 1


def full_size(arch: str, symbols: int = 10_000) -> nn.Module:
    """A model with the sizes of the arch and a vocabulary of ``symbols`` words."""
    dictionary = zoo.Dictionary()
    for n in range(symbols - len(dictionary)):
        dictionary.add_symbol(f"w{n}")
    task = SimpleNamespace(
        source_dictionary=dictionary, target_dictionary=dictionary, cfg=SimpleNamespace()
    )
    args = zoo.Namespace(arch=arch, share_all_embeddings=True)
    ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device("meta"):
        return build_model(args, task)


def test_iwslt_preset_adds_at_most_3_percent_parameters() -> None:
    """All embeddings are shared, which makes the plain model as small as possible."""
    counts = {
        arch: sum(p.numel() for p in full_size(arch).parameters())
        for arch in ("transformer_iwslt_de_en", "transformer_babn_iwslt_de_en")
    }
    plain, ours = counts.values()
    assert 1.0 < ours / plain <= 1.03
