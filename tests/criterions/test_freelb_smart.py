"""FreeLB and SMART: loss and gradient computed by hand, and what they do not change."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion
from torch import Tensor, nn

import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.divergences import squared_difference, symmetric_kl
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.criterions.attention_losses import criterion_config
from fairseq_stochattn.criterions.electra import ElectraCriterion
from fairseq_stochattn.criterions.predictions import target_logits
from fairseq_stochattn.criterions.token_tagging import TokenTaggingCriterion
from fairseq_stochattn.methods import freelb, smart
from fairseq_stochattn.tasks.token_tagging import IGNORED

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 2, seed=1)
LENGTHS = torch.tensor([len(row) for row in SOURCES])
UNPERTURBED = {"freelb": {"freelb_init": 0.0, "freelb_lr": 0.0}, "smart": {"smart_noise": 0.0}}


def batch(**padding: Any) -> dict[str, Any]:
    inputs = {"src_tokens": zoo.pad(SOURCES, **padding), "src_lengths": LENGTHS}
    inputs["prev_output_tokens"] = zoo.pad(zoo.shift(TARGETS))
    tokens = sum(map(len, TARGETS))
    return {"net_input": inputs, "target": zoo.pad(TARGETS), "ntokens": tokens}


def criterion(name: str, **flags: Any) -> Any:
    """A criterion of this package that wraps the cross entropy of translation."""
    criterion_class = CRITERION_REGISTRY[name]
    config = {entry.name: entry.default for entry in fields(criterion_config(name))}
    task = zoo.task()
    config |= {"kl_reduction": "mean", **flags}
    return criterion_class(task, Translation(task), Namespace(**config))


class Translation(FairseqCriterion):
    """Cross entropy in double precision, where fairseq's own computes in fp32."""

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool) -> tuple:
        loss = task_loss(model(**sample["net_input"])[0])
        return loss, sample["ntokens"], {"loss": loss.detach(), "sample_size": sample["ntokens"]}


def translator(arch: str = "transformer_deterministic", **flags: Any) -> nn.Module:
    return zoo.build(arch, share_all_embeddings=True, **flags).train()


def logits_of(model: nn.Module, delta: Tensor | float) -> Tensor:
    """The logits under δ, passed to fairseq's encoder as embeddings instead of by our hooks."""
    inputs = batch()["net_input"]
    embedded = model.encoder.embed_tokens(inputs["src_tokens"]) + delta
    encoded = model.encoder(inputs["src_tokens"], LENGTHS, token_embeddings=embedded)
    return model.decoder(inputs["prev_output_tokens"], encoder_out=encoded)[0]


def task_loss(logits: Tensor) -> Tensor:
    target = zoo.pad(TARGETS).flatten()
    return F.cross_entropy(logits.flatten(0, 1), target, ignore_index=zoo.PAD, reduction="sum")


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def start_at(delta: Tensor) -> Any:
    """A start of the perturbation that always returns ``delta``."""
    return lambda like, not_padding, random, **size: delta.clone()


def some_start(scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(4, 9, 16, dtype=torch.double, generator=generator)
    return scale * noise * zoo.pad(SOURCES).ne(zoo.PAD)[:, :, None]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_freelb_equals_algorithm_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """With K = 3: gradients accumulated step by step, δ moved sentence by sentence."""
    model, delta = translator().double(), some_start(0.02)
    monkeypatch.setattr(freelb, "uniform_start", start_at(delta))
    flags = {"freelb_steps": 3, "freelb_lr": 0.2, "freelb_radius": 0.3}
    loss, size, log = criterion("freelb", **flags)(model, batch())
    total, losses = [torch.zeros_like(p) for p in model.parameters()], []
    for _ in range(3):
        norm = delta.square().sum(dim=(1, 2)).sqrt().mean()
        delta = delta.detach().requires_grad_()
        losses.append(task_loss(logits_of(model, delta)))
        *grads, grad_delta = torch.autograd.grad(losses[-1], [*model.parameters(), delta])
        total = [x + grad / 3 for x, grad in zip(total, grads, strict=True)]
        rows = []
        for row, g in zip(delta.detach(), grad_delta, strict=True):
            moved = row + 0.2 * g / g.norm()
            rows.append(moved * min(1.0, 0.3 / moved.norm().item()))
        delta = torch.stack(rows)
    assert_close([loss], [sum(losses) / 3])
    assert_close(gradients(loss, model), total)
    assert losses[2] > losses[1] > losses[0]
    assert log["loss"] == pytest.approx(losses[0].item())
    assert log["attention/adv_loss"] * math.log(2) == pytest.approx(losses[2].item())
    assert log["attention/delta_norm"] / size == pytest.approx(norm.item())
    assert log["objective"] == pytest.approx(loss.item())


def test_smart_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ascent step on l_s, then L + λ·l_s, with the gradient through both predictions."""
    model, delta = translator().double(), some_start(1e-3).requires_grad_()
    monkeypatch.setattr(smart, "normal_start", start_at(delta.detach()))
    flags = {"smart_weight": 3.0, "smart_lr": 0.01, "smart_radius": 0.005}
    loss, size, log = criterion("smart", **flags)(model, batch())

    def distance(p: Tensor, q: Tensor) -> Tensor:
        p, q = (x.log_softmax(dim=-1)[zoo.pad(TARGETS).ne(zoo.PAD)] for x in (p, q))
        forward = F.kl_div(q, p, log_target=True, reduction="sum")
        return forward + F.kl_div(p, q, log_target=True, reduction="sum")

    clean = logits_of(model, 0.0)
    before = distance(logits_of(model, delta), clean.detach())
    (grad_delta,) = torch.autograd.grad(before, delta)
    largest = grad_delta.abs().amax(dim=(1, 2), keepdim=True)
    moved = (delta.detach() + 0.01 * grad_delta / largest).clamp(-0.005, 0.005)
    after = distance(logits_of(model, moved), clean)
    expected = task_loss(clean) + 3 * after
    assert after > 2 * before
    assert_close([loss, log["attention/smart"]], [expected, after.detach()])
    assert_close(gradients(loss, model), gradients(expected, model))
    assert log["attention/delta_norm"] / size == pytest.approx(0.005)


def test_smart_of_a_regression_is_the_squared_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ (f(X + δ) − f(X))² over all targets, for the δ that the perturbation starts from."""
    model, delta = translator().double(), some_start(1e-2)
    monkeypatch.setattr(smart, "normal_start", start_at(delta))
    regression = criterion("smart", smart_lr=0.0, smart_radius=0.0)
    regression.task_criterion.regression_target = True
    _, _, log = regression(model, batch())
    clean, moved = (logits_of(model, x)[zoo.pad(TARGETS).ne(zoo.PAD)] for x in (0.0, delta))
    expected = sum((a - b) ** 2 for a, b in zip(moved.flatten(), clean.flatten(), strict=True))
    assert log["attention/smart"].item() == pytest.approx(expected.item(), rel=1e-9)
    assert expected > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", UNPERTURBED)
def test_without_a_perturbation_it_is_the_plain_objective(name: str, method: str) -> None:
    """Loss, gradient and every named loss are equal: all passes share dropout and samples."""
    model = translator(f"transformer_{method}", dropout=0.3)
    found = {}
    flags = {**UNPERTURBED[name], "kl_weight": 0.1, "kl_anneal_updates": 0}
    if name == "freelb":
        flags["freelb_steps"] = 3
    for kind in (name, "elbo"):
        torch.manual_seed(5)
        if kind == "elbo":
            torch.randint(2**62, ())  # freelb and smart draw the seed of their noise here
        each = criterion(kind, **flags)
        forward = each.forward if kind == name else super(type(each), each).forward
        loss, _, log = forward(model, batch())
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
        found[kind] = loss.detach(), grads, log, torch.rand(())
    loss, grads, log, after = found[name]
    plain, plain_grads, plain_log, plain_after = found["elbo"]
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(grads, plain_grads, rtol=1e-4, atol=1e-5)
    assert after == plain_after
    assert log.get("attention/smart", 0) == 0
    for key in plain_log:
        assert float(log[key]) == pytest.approx(float(plain_log[key]), rel=1e-5), key


@pytest.mark.parametrize("arch", ["transformer", "transformer_babn"])
@pytest.mark.parametrize("name", UNPERTURBED)
def test_layerdrop_may_skip_all_decoder_layers(name: str, arch: str) -> None:
    """The loss then does not depend on the source: there is no gradient to follow."""
    for share, skipped in ((0.5, False), (1.0, True)):
        model = translator(arch, encoder_layerdrop=share, decoder_layerdrop=share)
        torch.manual_seed(2)
        loss, _, _ = criterion(name)(model, batch())
        loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert torch.isfinite(loss)
        assert all(torch.isfinite(grad).all() for grad in grads.values())
        assert skipped == all(grad.eq(0).all() for n, grad in grads.items() if ".layers." in n)


@pytest.mark.parametrize("name", UNPERTURBED)
def test_evaluation_is_one_unperturbed_pass(name: str) -> None:
    model, passes = translator().eval(), []
    handle = model.encoder.register_forward_hook(lambda *_: passes.append(1))
    loss, _, log = criterion(name, freelb_init=9.0, smart_noise=9.0)(model, batch())
    handle.remove()
    assert len(passes) == 1
    assert loss.item() == pytest.approx(task_loss(logits_of(model, 0.0)).item(), rel=1e-5)
    assert not any(key.startswith("attention/") for key in log)


def test_padding_does_not_matter() -> None:
    model = translator().double()
    found = [
        criterion("freelb", freelb_init=0.0, freelb_steps=3)(model, batch(**padding))[0]
        for padding in ({}, {"width": 14}, {"width": 14, "left": True})
    ]
    assert_close(found[1:], [found[0]] * 2)


def test_noise_follows_the_seed() -> None:
    model, found = translator(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(criterion("freelb", freelb_init=1.0)(model, batch())[0].item())
    assert found[0] == found[1] != found[2]


def test_target_logits_have_one_row_per_target() -> None:
    """Without padding and subwords that have no tag; all options of a question in one row."""
    task = zoo.task()
    entropy = Translation(task)
    logits = torch.randn(2, 3, 5)
    target = torch.tensor([[7, 8, zoo.PAD], [9, zoo.PAD, zoo.PAD]])
    assert torch.equal(
        target_logits(entropy, {"target": target}, [logits]), logits[[0, 0, 1], [0, 1, 0]]
    )
    tags = torch.tensor([[IGNORED, 1, 0], [IGNORED, IGNORED, 2]])
    tagging = TokenTaggingCriterion(task)
    assert torch.equal(
        target_logits(tagging, {"target": tags}, [logits]), logits[[0, 0, 1], [1, 2, 2]]
    )
    assert torch.equal(target_logits(entropy, {}, [logits[0]]), logits[0])
    ranking = CRITERION_REGISTRY["sentence_ranking"](task, "head", None, 2)
    assert target_logits(ranking, {}, [logits[0, :, :1], logits[1, :, :1]]).shape == (3, 2)
    electra = ElectraCriterion.__new__(ElectraCriterion)
    electra.__dict__["padding_idx"] = zoo.PAD
    replaced = target_logits(electra, {"net_input": {"src_tokens": target}}, [logits[:, :, 0]])
    torch.testing.assert_close(
        replaced.softmax(dim=-1)[:, 1], logits[[0, 0, 1], [0, 1, 0], 0].sigmoid()
    )
    adaptive = CRITERION_REGISTRY["adaptive_loss"](task, sentence_avg=False)
    with pytest.raises(UsageError, match="adaptive softmax"):
        target_logits(adaptive, {}, [logits])


def test_divergences() -> None:
    p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    both = sum(a * math.log(a / b) for a, b in ((0.25, 0.5), (0.75, 0.5)))
    both += sum(a * math.log(a / b) for a, b in ((0.5, 0.25), (0.5, 0.75)))
    assert symmetric_kl(p.log(), q.log() + 7).item() == pytest.approx(both, rel=1e-5)
    assert symmetric_kl(p.log(), p.log()).item() == 0
    assert squared_difference(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)).item() == 10
    assert squared_difference(torch.tensor([[2.0]]), torch.tensor([[5.0]])).item() == 9


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        ("freelb", "freelb_steps", 0),
        ("freelb", "freelb_lr", -1),
        ("freelb", "kl_weight", -1),
        ("smart", "smart_steps", 0),
        ("smart", "smart_radius", -1),
    ],
)
def test_bad_flags_are_refused(name: str, flag: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')} must"):
        criterion(name, **{flag: value})
