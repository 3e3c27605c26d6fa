"""The repulsive optimizer on small models: heads are particles, other parameters stay plain."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
from fairseq.optim.adam import FairseqAdam
from torch import Tensor, nn

import zoo
from fairseq_stochattn.commands.methods import main as methods_main
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.methods.repulsive import systems
from fairseq_stochattn.methods.repulsive.optimizer import noise_seed
from fairseq_stochattn.methods.repulsive.particles import (
    RULES,
    Hyperparameters,
    gram,
)
from fairseq_stochattn.methods.repulsive.systems import System, redirect
from fairseq_stochattn.optim.base_optimizers import base_config, base_names
from fairseq_stochattn.optim.repulsive import Repulsive
from repulsive_heads import is_head

SOURCES, TARGETS = zoo.sentences(9, 7, 4), zoo.sentences(8, 5, 3, seed=1)
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}


def built(model: nn.Module, base: str = "sgd", update: int = 0, **flags: Any) -> Repulsive:
    """The optimizer as fairseq's Trainer builds it, without precision wrappers, by default SVGD."""
    config = OPTIMIZER_DATACLASS_REGISTRY["repulsive"](
        **{"lr": [0.1], "tpu": False, "repulsive_base": base, "repulsive_rule": "svgd", **flags}
    )
    optimizer = Repulsive.build_optimizer(config, list(model.parameters()))
    held = {parameter: parameter for parameter in model.parameters()}
    optimizer.attach(model, held, 1, lambda: update, lambda: 1.0)
    return optimizer


def with_gradients(model: nn.Module) -> nn.Module:
    model.zero_grad()
    out = zoo.run(model, "transformer", SOURCES, TARGETS)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    (out.log_softmax(-1) * weights).sum().backward()
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_only_gradients_of_heads_become_minus_epsilon_phi() -> None:
    model = with_gradients(zoo.build("transformer", **HEADS))
    before = gradients(model)
    built(model, repulsive_epsilon=0.3, repulsive_weight=2.0).clip_grad_norm(0)
    after = gradients(model)
    assert all(torch.equal(after[name], before[name]) for name in before if not is_head(name))
    modules = dict(model.named_modules())
    projections = [name[:-7] for name in before if is_head(name) and name.endswith("weight")]
    assert len(projections) == 3 * 9
    for name in projections:
        linear, shape = modules[name], (1, 4, -1)
        theta, gradient, found = (
            torch.cat([w.reshape(shape), b.reshape(shape)], dim=2).double()
            for w, b in (
                (linear.weight.detach(), linear.bias.detach()),
                (before[f"{name}.weight"], before[f"{name}.bias"]),
                (after[f"{name}.weight"], after[f"{name}.bias"]),
            )
        )
        rule = RULES["svgd"](gram(theta), Hyperparameters(0.3, 2.0))
        expected = -0.3 * rule.direction(gradient, theta)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["", "_babn"])
@pytest.mark.parametrize("backbone", ["transformer", "transformer_lm", "roberta"])
def test_every_backbone_with_heads(backbone: str, method: str) -> None:
    """The three projections of every attention and no other parameter, with and without methods."""
    model = zoo.build(backbone + method).train()
    zoo.run(model, backbone, SOURCES, TARGETS).float().logsumexp(-1).sum().backward()
    before = gradients(model)
    optimizer = built(model, repulsive_weight=1.0)
    assert len(optimizer.systems) == 3 * (9 if backbone == "transformer" else 3)
    optimizer.clip_grad_norm(0)
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, before[name]) != is_head(name), name


def permuted(model: nn.Module, order: list[int]) -> nn.Module:
    """A model that computes the same function with its heads in another order."""
    twin = copy.deepcopy(model)
    for group in find_heads(twin):
        module = group.module
        rows = torch.arange(module.embed_dim).view(group.num_heads, -1)[order].flatten()
        for linear in (module.q_proj, module.k_proj, module.v_proj):
            linear.weight.data = linear.weight.data[rows]
            linear.bias.data = linear.bias.data[rows]
        module.out_proj.weight.data = module.out_proj.weight.data[:, rows]
    return twin


@pytest.mark.parametrize("coupling", ["decoupled", "gradient"])
@pytest.mark.parametrize("rule", ["directions", "svgd", "sgld"])
def test_permuting_the_heads_permutes_the_update(rule: str, coupling: str) -> None:
    """True if the particles are heads."""
    order = [2, 0, 3, 1]
    model = zoo.build("transformer", **HEADS)
    twin = permuted(model, order)
    flags = {"repulsive_rule": rule, "repulsive_weight": 1.0, "repulsive_beta": 1e30}
    flags |= {"repulsive_coupling": coupling, "repulsive_strength": 1.0}
    for each in (model, twin):
        optimizer = built(with_gradients(each), **flags)
        optimizer.clip_grad_norm(0)
        optimizer.step()
    expected = permuted(model, order)
    for (name, one), other in zip(twin.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("stack_size", [1, 2**30])
def test_the_size_of_stacks_changes_nothing(
    stack_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is that of the default, for one system per stack and for all in one stack."""
    found = []
    for limit in (systems._STACK_SIZE["cpu"], stack_size):
        monkeypatch.setitem(systems._STACK_SIZE, "cpu", limit)
        model = with_gradients(zoo.build("transformer", **HEADS))
        built(model).clip_grad_norm(0)
        found.append(gradients(model))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, msg=name)


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 27),
        ({"repulsive_projections": "v"}, 9),
        ({"repulsive_projections": "q, k"}, 18),
        ({"repulsive_sites": "cross"}, 9),
        ({"repulsive_sites": "encoder,decoder", "repulsive_layers": "first"}, 6),
        ({"repulsive_layers": "0,2", "repulsive_projections": "k"}, 6),
    ],
)
def test_selection(flags: dict, count: int) -> None:
    model = with_gradients(zoo.build("transformer", **HEADS))
    before = gradients(model)
    optimizer = built(model, **flags)
    assert len(optimizer.systems) == count
    optimizer.clip_grad_norm(0)
    after = gradients(model)
    assert sum(not torch.equal(after[name], before[name]) for name in before) == 2 * count


def test_skipped_layers_do_not_move() -> None:
    """A layer that LayerDrop skipped has no gradient; the other layers move as without it."""
    found = []
    for flags in ({}, {"repulsive_layers": "1,2", "repulsive_sites": "encoder"}):
        model = with_gradients(zoo.build("transformer", **HEADS))
        for parameter in model.encoder.layers[0].parameters():
            parameter.grad = None
        optimizer = built(model, repulsive_rule="spos", **{"repulsive_sites": "encoder", **flags})
        start = model.encoder.layers[0].self_attn.q_proj.weight.clone()
        optimizer.clip_grad_norm(0)
        optimizer.step()
        assert torch.equal(model.encoder.layers[0].self_attn.q_proj.weight, start)
        found.append(model.state_dict())
    assert all(torch.equal(found[1][name], value) for name, value in found[0].items())


def test_frozen_heads_are_left_out() -> None:
    model = zoo.build("transformer", **HEADS)
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(False)
    held = {p: p for p in model.parameters() if p.requires_grad}
    optimizer = built(model)
    optimizer.attach(model, held, 1, lambda: 0, lambda: 1.0)
    assert len(optimizer.systems) == 18
    with pytest.raises(UsageError, match="frozen"):
        optimizer.attach(model, {}, 1, lambda: 0, lambda: 1.0)


def test_clipping_comes_after_the_repulsion() -> None:
    model = with_gradients(zoo.build("transformer", **HEADS))
    twin = copy.deepcopy(model)
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        other.grad = parameter.grad.clone()
    built(twin, repulsive_epsilon=5.0).clip_grad_norm(0)
    redirected = gradients(twin)
    norm = torch.cat([x.flatten() for x in redirected.values()]).norm()
    reported = built(model, repulsive_epsilon=5.0).clip_grad_norm(0.5)
    torch.testing.assert_close(reported, norm)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, redirected[name] * 0.5 / norm, msg=name)


def noise_of(seed: int, settings: Hyperparameters, rule: str = "spos") -> Tensor:
    weights = nn.Parameter(torch.zeros(64, 500)), nn.Parameter(torch.zeros(64))
    for parameter in weights:
        parameter.grad = torch.zeros_like(parameter)
    redirect([System(8, weights)], RULES[rule], settings, seed)
    return torch.cat([parameter.grad.flatten() for parameter in weights])


@pytest.mark.parametrize("rule", ["spos", "sgld"])
def test_noise_has_the_variance_of_eq_5(rule: str) -> None:
    """ε·√(2β⁻¹ε⁻¹)·ξ in the gradient has the variance 2ε/β; measured on 32 064 numbers."""
    noise = noise_of(0, Hyperparameters(epsilon=0.2, beta=4.0), rule)
    assert noise.mean().item() == pytest.approx(0, abs=0.008)
    assert noise.var().item() == pytest.approx(2 * 0.2 / 4, rel=0.04)


def test_noise_depends_only_on_seed_and_update() -> None:
    settings = Hyperparameters()
    torch.manual_seed(1)
    first, state = noise_of(noise_seed(3, 7), settings), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # the global generator is not used
    torch.manual_seed(2)
    assert torch.equal(noise_of(noise_seed(3, 7), settings), first)
    others = [noise_of(noise_seed(*pair), settings) for pair in ((3, 8), (4, 7), (7, 3))]
    for other in others:
        correlation = torch.corrcoef(torch.stack([first, other]))[0, 1]
        assert correlation.abs() < 0.03


def test_start_update() -> None:
    model = with_gradients(zoo.build("transformer", **HEADS))
    before = gradients(model)
    built(model, repulsive_start=10, update=9).clip_grad_norm(0)
    assert all(torch.equal(x, before[name]) for name, x in gradients(model).items())
    built(model, repulsive_start=10, update=10).clip_grad_norm(0)
    assert any(not torch.equal(x, before[name]) for name, x in gradients(model).items())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("disturb", ["one head", "identical heads", "zero heads"])
def test_degenerate_heads_stay_finite(rule: str, disturb: str) -> None:
    heads = dict.fromkeys(HEADS, 1) if disturb == "one head" else HEADS
    model = zoo.build("transformer", **heads)
    with torch.no_grad():
        for group in find_heads(model):
            for parameter in (p for parts in group.parameters.values() for p in parts):
                rows = parameter.view(group.num_heads, -1)
                if disturb != "one head":
                    rows.copy_(rows[:1].clone() * (disturb == "identical heads"))
    built(with_gradients(model), repulsive_rule=rule).clip_grad_norm(0)
    assert all(x.isfinite().all() for x in gradients(model).values())


def test_state_and_param_groups_are_those_of_the_base() -> None:
    model = with_gradients(zoo.build("transformer", **HEADS))
    optimizer = built(model, "adam")
    optimizer.set_lr(0.25)
    assert optimizer.optimizer.param_groups is optimizer.param_groups
    assert all(group["lr"] == 0.25 for group in optimizer.optimizer.param_groups)
    optimizer.clip_grad_norm(0)
    optimizer.step()
    stored = copy.deepcopy(optimizer.state_dict())
    plain = FairseqAdam(
        base_config("adam", Namespace(lr=[0.1], tpu=False)), list(model.parameters())
    )
    plain.load_state_dict(stored)
    built(model, "adam").load_state_dict(plain.state_dict())
    assert plain.get_lr() == 0.25
    # fairseq compares the class name with the one in a checkpoint.
    assert type(optimizer).__name__ == type(plain).__name__


def test_flags_of_the_base_keep_their_names_and_defaults() -> None:
    model = zoo.build("transformer", **HEADS)
    assert built(model, "nag").optimizer.param_groups[0]["momentum"] == 0.99
    assert built(model, "sgd").optimizer.param_groups[0]["momentum"] == 0.0
    assert built(model, "sgd", momentum=0.5).optimizer.param_groups[0]["momentum"] == 0.5
    group = built(model, "adam", adam_betas="(0.8, 0.9)", weight_decay=0.3).param_groups[0]
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.8, 0.9), 0.3, 1e-8)
    assert {"adam", "fused_adamw", "sgd", "nag", "adafactor", "adagrad"} <= set(base_names())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda m: built(m, "adan"), r"--repulsive-base: unknown optimizer 'adan' \(known: adad"),
        (lambda m: built(m, "repulsive"), "unknown optimizer 'repulsive'"),
        (lambda m: built(m, "lamb"), "--repulsive-base lamb: .*apex"),
        (
            lambda m: built(m, "adam", momentum=0.1),
            "--momentum is not a flag of --repulsive-base adam",
        ),
        (lambda m: built(m, repulsive_epsilon=-0.1), "--repulsive-epsilon must be positive"),
        (lambda m: built(m, repulsive_beta=0.0), "--repulsive-beta must be positive"),
        (lambda m: built(m, repulsive_weight=-1.0), "--repulsive-weight must not be negative"),
        (lambda m: built(m, repulsive_start=-1), "--repulsive-start must not be negative"),
        (lambda m: built(m, repulsive_projections="q,o"), "no projection 'o' .known: q, k, v"),
        (lambda m: built(m, repulsive_sites="self"), "--repulsive-sites: unknown site 'self'"),
        (lambda m: built(m, repulsive_layers="3"), "--repulsive-layers 3: out of range"),
        (lambda m: built(zoo.build("lstm")), "no attention with heads"),
        (lambda m: built(zoo.build("roberta"), repulsive_sites="cross"), "no cross attention"),
    ],
)
def test_bad_flags_are_refused(build: Callable, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(zoo.build("transformer", **HEADS))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ddp_backend": "fully_sharded"}, "hides the heads.* use --ddp-backend pytorch_ddp"),
        ({"fp16": True}, "add --fp16-no-flatten-grads"),
        ({"fp16": True, "fp16_no_flatten_grads": True}, None),
        ({"fp16": True, "memory_efficient_fp16": True}, None),
    ],
)
def test_flags_that_hide_the_heads_are_refused(flags: dict, message: str | None) -> None:
    given = {"fp16_no_flatten_grads": False, "memory_efficient_fp16": False, "fp16": False}
    part = Namespace(**{"ddp_backend": "pytorch_ddp", **given, **flags})
    with pytest.raises(UsageError, match=message) if message else nullcontext():
        Repulsive.refuse_impossible(Namespace(common=part, distributed_training=part))


def test_a_step_without_a_model_is_refused() -> None:
    model = with_gradients(zoo.build("transformer", **HEADS))
    optimizer = built(model)
    optimizer.systems = None
    with pytest.raises(UsageError, match="within fairseq's Trainer"):
        optimizer.step()


def test_the_flags_are_listed(capsys: pytest.CaptureFixture) -> None:
    methods_main([])
    listing = capsys.readouterr().out
    assert "\n--optimizer repulsive: " in listing
    assert "\n  --repulsive-epsilon: svgd, spos, sgld: stepsize ε" in listing
    assert "adadelta" not in listing
