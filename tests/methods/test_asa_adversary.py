"""The adversary of asa: its learning-rate multiplier, its budget, its width, its warm-up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.divergences import categorical_kl
from fairseq_stochattn.core.gradients import magnify
from fairseq_stochattn.core.losses import NamedLoss, collecting_losses, take_losses
from fairseq_stochattn.core.paired_batch import paired_batch, twice
from fairseq_stochattn.methods.asa import AdversarialSelfAttention
from fairseq_stochattn.methods.asa.attention import with_budget
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter

TOKENS = zoo.pad(zoo.sentences(9, 7, 4, 1))
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "clipped": lambda p: torch.optim.Adam(p, lr=0.1, eps=1.0),
}


def build(**settings: object) -> nn.Module:
    """A model whose attention changes its predictions."""
    model = zoo.build("roberta_asa", **settings).double().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not is_plugin_parameter(name):
                parameter.mul_(10)
    return model


def adversaries(model: nn.Module) -> list[AdversarialSelfAttention]:
    return [m for m in model.modules() if isinstance(m, AdversarialSelfAttention)]


def gradients(model: nn.Module, part: float = 1.0) -> dict[str, Tensor]:
    """Of part·D + 0.3·share with the same masks in every call."""
    torch.manual_seed(0)
    with paired_batch(), collecting_losses():
        clean, adversarial = model(twice(TOKENS))[0].chunk(2)
    losses = [loss for name, loss in take_losses(model) if name == "masked_share"]
    share = sum(loss.value for loss in losses) / sum(loss.count for loss in losses)
    model.zero_grad()
    (part * categorical_kl(clean, adversarial).mean() + 0.3 * share).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_magnified_parameter_moves_m_times_as_far(name: str) -> None:
    """For every optimizer, also where gradients are clipped or small beside Adam's ε."""
    paths = {}
    slope = torch.tensor([3.0, -0.5, 1e-3], dtype=torch.double)
    for m in (1.0, 30.0):
        v = nn.Parameter(torch.tensor([0.3, 0.6, -0.9], dtype=torch.double) / m)
        optimizer = OPTIMIZERS[name]([v])
        for _ in range(5):
            optimizer.zero_grad()
            (magnify(v, m) * slope).sum().backward()
            if name == "clipped":
                nn.utils.clip_grad_norm_([v], 0.1)
            optimizer.step()
        paths[m] = magnify(v, m).detach() - torch.tensor([0.3, 0.6, -0.9], dtype=torch.double)
    torch.testing.assert_close(paths[30.0], 30 * paths[1.0])


def test_the_multiplier_changes_neither_masks_nor_gradients() -> None:
    models = [build(asa_lr_multiplier=m) for m in (1.0, 30.0)]
    found = [gradients(model) for model in models]
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("stored", [None, 5.0, 30.0])
def test_checkpoints_with_another_multiplier_are_converted(stored: float | None) -> None:
    """None: a checkpoint of a version without multipliers."""
    source, target = build(asa_lr_multiplier=stored or 1.0), build(asa_lr_multiplier=30.0)
    with torch.no_grad():
        for method in adversaries(source):
            for parameter in method.parameters():
                parameter.normal_()
    state = source.state_dict()
    if stored is None:
        state = {name: value for name, value in state.items() if "lr_multiplier" not in name}
    target.load_state_dict(dict(state))
    found, expected = gradients(target), gradients(source)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-9)
    assert all(m.lr_multiplier.item() == 30 for m in adversaries(target))


def test_half_precision_keeps_the_adversary() -> None:
    """v = w/m is well above the smallest number of fp16."""
    model = build(asa_lr_multiplier=100.0)
    for method in adversaries(model):
        linear = method.queries_and_keys
        expected = 100 * linear.weight.detach()
        torch.testing.assert_close(
            magnify(linear.weight.detach().half(), 100.0).double(), expected, rtol=2e-3, atol=1e-5
        )


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_initial_share(share: float) -> None:
    model = build(asa_initial_share=share, asa_lr_multiplier=30.0)
    tokens = zoo.pad(zoo.sentences(*[12] * 40))
    torch.manual_seed(0)
    with paired_batch(), collecting_losses():
        model(twice(tokens))
    losses = [loss for name, loss in take_losses(model) if name == "masked_share"]
    found = sum(loss.value for loss in losses) / sum(loss.count for loss in losses)
    assert found.item() == pytest.approx(share, abs=0.1 * share + 0.01)


def test_width() -> None:
    widths = [adversaries(build(asa_width=width))[0].dim for width in ("head", "hidden")]
    assert widths == [8, 16]
    assert adversaries(build(asa_width="hidden", asa_dim=5))[0].dim == 5


def test_in_the_warm_up_the_adversary_learns_at_full_strength() -> None:
    """At update 4 of 20 the model has a quarter of the divergence, the adversary all of it."""
    plain, warm = build(), build(asa_warmup=20)
    for model in (plain, warm):
        model.set_num_updates(4)
    found, expected = gradients(warm, part=0.25), gradients(plain)
    for name in expected:
        factor = 1.0 if is_plugin_parameter(name) else 0.25
        torch.testing.assert_close(found[name], factor * expected[name], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e3])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_a_budget_settles_at_a_share_whatever_the_scale_of_the_divergence(
    scale: float, power: float
) -> None:
    """D = c·s^a has its optimum of D − (D/ε)·s at s = a·ε."""
    model = build(asa_budget=0.1)
    score = nn.Parameter(torch.tensor(-4.0, dtype=torch.double))
    optimizer = torch.optim.Adam([score], lr=0.02, eps=1e-12)
    for _ in range(600):
        share = score.sigmoid()
        divergence = scale * share**power
        penalty = ("masked_share", NamedLoss(share, 0.3, "mean"))
        ((_, loss),) = with_budget(model, [penalty], divergence)
        optimizer.zero_grad()
        (loss.weight * loss.value - divergence).backward()
        optimizer.step()
    assert score.sigmoid().item() == pytest.approx(0.1 * power, rel=0.05)


def test_tau_and_the_sum_of_pairs_have_no_budget() -> None:
    penalty = ("masked_share", NamedLoss(torch.ones(()), 0.3, "mean"))
    measure = ("masked_share", NamedLoss(torch.ones(()), None, "mean"))
    two = torch.tensor(2.0)
    for flags in ({"asa_tau": 0.3}, {"asa_penalty": "sum"}):
        assert list(with_budget(build(**flags), [penalty], two)) == [penalty]
    assert list(with_budget(build(), [measure], two)) == [measure]
    ((_, loss),) = with_budget(build(asa_budget=0.25), [penalty], two)
    assert loss.weight.item() == 8
