"""BABN against its equations: the chain, the KL's gradients, padding, lengths, parameters."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from torch import Tensor, nn

import zoo
from fairseq_stochattn.attention.method import METHODS, collect_losses, collecting_losses
from fairseq_stochattn.distributions import kl_weibull_gamma
from fairseq_stochattn.export import is_ours

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
SCORES = pytest.mark.parametrize("scores", ["normalized", "raw"])


def babn_layers(model: nn.Module, site: str) -> list[nn.Module]:
    """The attention modules of a site, first layer first."""
    owner = model.encoder if site == "encoder" else model.decoder
    owner = getattr(owner, "sentence_encoder", owner)
    name = "encoder_attn" if site == "cross" else "self_attn"
    return [getattr(layer, name) for layer in owner.layers]


def recorded(model: nn.Module, site: str) -> list[tuple[Tensor, object]]:
    """(logits, cells) that every layer of a site hands to its method, in the order of layers."""
    seen: list[tuple[Tensor, object]] = []
    for attention in babn_layers(model, site):
        method = attention.attention_methods["babn"]
        method.register_forward_pre_hook(lambda _, args: seen.append(args))
    return seen


def upward_by_hand(phi: Tensor, mask: Tensor, f3: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """§3 word for word for one sentence and head: phi, mask (T, S); f3 of layer 1 first."""
    h = torch.zeros_like(phi)  # h^{L+1}
    for t in range(phi.size(0)):
        visible = [s for s in range(phi.size(1)) if mask[t, s]]
        total = sum(math.exp(phi[t, s]) for s in visible)
        for s in visible:
            h[t, s] = math.exp(phi[t, s]) / total
    states = []
    for weight, bias in reversed(f3):  # l = L … 1
        below = torch.zeros_like(h)
        for t in range(h.size(0)):
            for s in range(h.size(1)):
                if not mask[t, s]:
                    continue
                if s < weight.size(0):
                    width = min(weight.size(0), h.size(1))
                    mixed = sum(weight[s, j] * h[t, j] for j in range(width)) + bias[s]
                else:
                    mixed = h[t, s]  # identity beyond the known positions
                below[t, s] = math.log1p(math.exp(mixed))
        states.append(below)
        h = below
    return states[::-1]


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("positions", [5, 64])
def test_chain_is_the_papers(site: str, positions: int) -> None:
    model = zoo.build("transformer_babn", babn_max_positions=positions).double().eval()
    seen = recorded(model, site)
    zoo.run(model, "transformer", SOURCES, TARGETS)
    logits, cells = seen[0]
    stack = cells.stack
    chain = stack.shared["babn"].chain
    f3 = [(m.weight[0].detach(), m.bias[0].detach()) for m in chain.f3]
    for sentence, head in ((0, 0), (1, 1), (2, 0)):
        mask = cells.valid[sentence, 0].clone()
        rows = mask.any(dim=1)
        expected = upward_by_hand(logits[sentence, head].detach(), mask, f3)
        for layer, by_hand in enumerate(expected):
            found = stack.state["babn"].states[layer][sentence, head]
            torch.testing.assert_close(found[rows], by_hand[rows], rtol=1e-9, atol=1e-9)


def test_chain_depends_on_the_first_layer_alone() -> None:
    """h of every layer is there before the second layer's logits are."""
    model = zoo.build("roberta_babn").eval()
    first, second = (a.attention_methods["babn"] for a in babn_layers(model, "encoder")[:2])
    stack = model.encoder.sentence_encoder.attention_stacks["encoder"]
    known: list[list[int]] = []
    first.register_forward_hook(lambda *_: known.append(sorted(stack.state["babn"].states)))
    before: dict[int, Tensor] = {}
    second.register_forward_pre_hook(
        lambda *_: before.update({n: x.clone() for n, x in stack.state["babn"].states.items()})
    )
    zoo.run(model, "roberta", SOURCES, TARGETS)
    assert known == [[0, 1, 2]]
    assert all(torch.equal(stack.state["babn"].states[n], x) for n, x in before.items())


@SCORES
def test_kl_is_the_formula_on_valid_cells(scores: str) -> None:
    model = zoo.build("transformer_babn", babn_scores=scores, babn_sigma=0.2, babn_beta=0.7)
    model = model.double().eval()
    seen = recorded(model, "cross")
    with collecting_losses():
        zoo.run(model, "transformer", SOURCES, TARGETS, left=True)
    for attention, (logits, cells) in zip(babn_layers(model, "cross"), seen, strict=True):
        method = attention.attention_methods["babn"]
        a = logits if scores == "raw" else cells.mask(logits).log_softmax(-1).clamp(min=-1e3)
        f1, f2 = cells.stack.state["babn"].apply(method.maps, method.layer)
        k = 1.5 * F.softplus(f1) + a.exp() + 0.05
        scale = 0.2 * F.softplus(f2) + a.exp() / torch.lgamma(1 + 1 / k).exp()
        kl = kl_weibull_gamma(k, scale.log(), method.prior(cells), 0.7)
        valid = cells.valid.expand_as(kl)
        torch.testing.assert_close(method.losses["kl"].value, kl[valid].sum().float())
        assert method.losses["kl"].count == valid.sum()
        assert cells.valid.sum() == sum(
            len(s) * len(t) for s, t in zip(SOURCES, TARGETS, strict=True)
        )


def kl_of(model: nn.Module, backbone: str, width: int, left: bool) -> list[Tensor]:
    with collecting_losses():
        zoo.run(model, backbone, SOURCES, TARGETS, left=left, width=width)
    return [loss.value for name, loss in collect_losses(model) if name == "kl"]


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
def test_kl_gradient_reaches_everything(arch: str, scores: str) -> None:
    method = arch.split("_")[1]
    model = zoo.build(arch, **{f"{method}_scores": scores}).double().train()
    zoo.run(model, "transformer", SOURCES, TARGETS)
    sum(loss.value for name, loss in collect_losses(model) if name == "kl").backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in gradients.items():
        reached = is_ours(name) or "q_proj.weight" in name or "k_proj.weight" in name
        # A softmax over keys does not feel what is added to all of them.
        if reached and not name.endswith("prior.f2.bias"):
            assert gradient is not None, name
            assert gradient.abs().sum() > 0, name


def test_ablations_of_table_8() -> None:
    """ρ = 0: k sees the scores alone; σ = 0: no f2, and the mean is plain attention."""
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
def test_a_deterministic_checkpoint_becomes_babn(backbone: str, scores: str) -> None:
    plain = zoo.build(backbone, seed=5).eval()
    ours = zoo.build(f"{backbone}_babn", babn_scores=scores, babn_sigma=1e-12).eval()
    ours.load_state_dict(plain.state_dict(), strict=True)
    found, expected = (zoo.run(m, backbone, SOURCES, TARGETS) for m in (ours, plain))
    rows = SOURCES if backbone == "roberta" else TARGETS
    found, expected = (zoo.real_positions(x, backbone, rows) for x in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backbone", ["transformer", "transformer_lm", "roberta", "lstm"])
@pytest.mark.parametrize(
    "flags",
    [{"babn_max_positions": 3}, {"babn_upward": "heads"}, {"babn_share_layers": True}],
    ids=["beyond N", "heads", "shared"],
)
def test_variants_keep_the_contract(backbone: str, flags: dict) -> None:
    """Batches, padding side and one-token sentences, with sentences longer than N."""
    model = zoo.build(f"{backbone}_babn", babn_sigma=0.3, **flags).eval()
    rows = SOURCES if backbone == "roberta" else TARGETS
    found = [
        zoo.real_positions(zoo.run(model, backbone, SOURCES, TARGETS, left), backbone, rows, left)
        for left in (False, True)
    ]
    alone = [
        zoo.real_positions(zoo.run(model, backbone, [s], [t]), backbone, [r])
        for s, t, r in zip(SOURCES, TARGETS, rows, strict=True)
    ]
    for x in found:
        torch.testing.assert_close(x, torch.cat(alone), rtol=1e-5, atol=3e-6)
    model.train()
    out = zoo.run(model, backbone, SOURCES, TARGETS).sum()
    loss = out + sum(term.value for _, term in collect_losses(model))
    loss.backward()
    ours = [p for n, p in model.named_parameters() if is_ours(n)]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours)


def test_sigma_makes_positions_matter() -> None:
    """With a large σ the mean feels f2; otherwise the variants above would prove nothing."""
    outs = [
        zoo.run(zoo.build("roberta_babn", babn_sigma=s).eval(), "roberta", SOURCES, TARGETS)
        for s in (0.3, 1e-12)
    ]
    assert (outs[0] - outs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["babn", "bam"])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_logits_in_half_precision(method: str, size: float) -> None:
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
        terms = [term.value for _, term in collect_losses(model)]
        assert all(term.isfinite() for term in terms)
    assert found[0].isfinite().all()
    assert torch.equal(*found)


def test_lstm_prior_is_made_once_a_forward() -> None:
    model = zoo.build("lstm_babn").train()
    prior = model.decoder.attention.attention_methods["babn"].prior
    calls: list[int] = []
    prior.register_forward_hook(lambda *_: calls.append(1))
    zoo.run(model, "lstm", SOURCES, TARGETS)
    assert len(calls) == 1


def full_size(arch: str, symbols: int = 10_000) -> nn.Module:
    dictionary = zoo.Dictionary()
    for n in range(symbols - len(dictionary)):
        dictionary.add_symbol(f"w{n}")
    task = SimpleNamespace(
        source_dictionary=dictionary, target_dictionary=dictionary, cfg=SimpleNamespace()
    )
    shared = {"share_all_embeddings": True} if arch.startswith("transformer") else {}
    args = zoo.Namespace(arch=arch, criterion="elbo", **shared)
    ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device("meta" if arch.startswith("transformer") else "cpu"):
        return build_model(args, task)


def test_parameters_of_the_iwslt_presets() -> None:
    """At most 3 % over plain, with all embeddings shared: the smallest plain model."""
    counts = {
        arch: sum(p.numel() for p in full_size(arch).parameters())
        for arch in ("transformer_iwslt_de_en", "transformer_babn_iwslt_de_en")
    }
    plain, ours = counts.values()
    assert 1.0 < ours / plain <= 1.03


@pytest.mark.parametrize("method", ["babn", "bam"])
def test_lstm_preset_is_the_papers(method: str) -> None:
    model = full_size(f"lstm_{method}_iwslt_de_en", symbols=100)
    assert model.encoder.lstm.num_layers == 2
    assert model.encoder.lstm.bidirectional
    assert model.encoder.hidden_size == 512
    assert [cell.hidden_size for cell in model.decoder.layers] == [768, 768]
    assert model.decoder.dropout_out_module.p == 0.3
    assert METHODS[method].name in model.decoder.attention.attention_methods
