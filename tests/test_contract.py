"""The contract every method keeps on every backbone; a method joins by being registered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import graph_texts
import zoo
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.core.method import METHODS, AttentionMethod
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter

CLOSE = {"rtol": 1e-5, "atol": 2e-6}
SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
DECODING = ("transformer", "transformer_lm", "lstm", "graph_writer")

every_pair = pytest.mark.parametrize(("backbone", "method"), zoo.all_pairs())


def pairs_of(*backbones: str):
    """Only the backbones that have what a clause of the contract speaks of."""
    chosen = [pair for pair in zoo.all_pairs() if pair[0] in backbones]
    return pytest.mark.parametrize(("backbone", "method"), chosen)


def build(backbone: str, method: str, **overrides) -> nn.Module:
    return zoo.build(f"{backbone}_{method}", **overrides).eval()


def rows_of(backbone: str) -> list[Tensor]:
    return SOURCES if backbone in zoo.ENCODERS else TARGETS


def decode(model: nn.Module, backbone: str, state: dict | None, tokens: Tensor, memory) -> Tensor:
    if backbone == "transformer_lm":
        return model.decoder(tokens, incremental_state=state)[0]
    return model.decoder(tokens, encoder_out=memory, incremental_state=state)[0]


def encode(model: nn.Module, backbone: str):
    if backbone == "transformer_lm":
        return None
    if backbone == "graph_writer":
        return model.encoder(**graph_texts.inputs(SOURCES))
    tokens = zoo.pad(SOURCES, left=True)
    return model.encoder(tokens, src_lengths=tokens.ne(zoo.PAD).sum(1))


@every_pair
def test_batch_independence(backbone: str, method: str) -> None:
    model = build(backbone, method)
    rows = rows_of(backbone)
    width = 0 if backbone == "lstm" else 30  # packed sequences refuse columns of padding only
    together = zoo.run(model, backbone, SOURCES, TARGETS, width=width)
    together = zoo.non_padding_outputs(together, backbone, rows)
    alone = [
        zoo.non_padding_outputs(zoo.run(model, backbone, [s], [t]), backbone, [r])
        for s, t, r in zip(SOURCES, TARGETS, rows, strict=True)
    ]
    torch.testing.assert_close(torch.cat(alone), together, **CLOSE)


@pairs_of("transformer", "lstm", *zoo.ENCODERS)
def test_padding_side(backbone: str, method: str) -> None:
    model = build(backbone, method)
    found = [
        zoo.non_padding_outputs(
            zoo.run(model, backbone, SOURCES, TARGETS, left), backbone, rows_of(backbone), left
        )
        for left in (False, True)
    ]
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@pairs_of(*DECODING)
def test_causality(backbone: str, method: str) -> None:
    model = build(backbone, method)
    memory = encode(model, backbone)
    first = zoo.pad(zoo.shift(TARGETS))
    second = first.clone()
    second[:, 4:] = torch.where(first[:, 4:].eq(zoo.PAD), zoo.PAD, 5)
    seen = [decode(model, backbone, None, tokens, memory)[:, :4] for tokens in (first, second)]
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=1e-6)
    after = [decode(model, backbone, None, tokens, memory)[:, 4:] for tokens in (first, second)]
    assert not torch.allclose(*after)


@pairs_of(*DECODING)
def test_incremental_equals_full(backbone: str, method: str) -> None:
    model = build(backbone, method)
    memory = encode(model, backbone)
    tokens = torch.stack(zoo.sentences(6, 6, 6, 6))
    full = decode(model, backbone, None, tokens, memory)
    state: dict = {}
    steps = [decode(model, backbone, state, tokens[:, : t + 1], memory) for t in range(6)]
    torch.testing.assert_close(torch.cat([s[:, -1:] for s in steps], dim=1), full, **CLOSE)


@pairs_of("transformer")
def test_unrepeated_keys_in_beam_search(backbone: str, method: str) -> None:
    beam = 3
    found = []
    for unrepeated in (False, True):
        model = build(backbone, method)
        memory = encode(model, backbone)
        order = torch.arange(len(SOURCES)).repeat_interleave(beam)
        if unrepeated:
            model.decoder.set_beam_size(beam)
        else:
            memory = model.encoder.reorder_encoder_out(memory, order)
        tokens = torch.stack(zoo.sentences(*[5] * beam * len(SOURCES)))
        swapped = torch.arange(len(tokens)).view(-1, beam).flip(1).flatten()
        state: dict = {}
        steps = []
        for t in range(5):
            if t == 3:  # the search lets hypotheses of one sentence change places
                model.decoder.reorder_incremental_state_scripting(state, swapped)
                tokens = tokens[swapped]
            steps.append(decode(model, backbone, state, tokens[:, : t + 1], memory))
        found.append(torch.cat([s[:, -1:] for s in steps], dim=1))
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@every_pair
def test_extremes_stay_finite(backbone: str, method: str) -> None:
    """One-token sentences, an all-padding source, logits of ±1e4: no NaN, no infinity."""
    sources, targets = [SOURCES[0], SOURCES[3]], [TARGETS[0], TARGETS[3]]
    empty = torch.full((9,), zoo.PAD)
    for size in (1.0, 1e4):
        model = build(backbone, method).train()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("q_proj.weight", "input_proj.weight")):
                    parameter.mul_(size)
        batch = [*sources, empty] if backbone in zoo.ENCODERS else sources
        out = zoo.run(model, backbone, batch, targets)
        if backbone == "transformer":
            tokens = torch.stack([SOURCES[0], empty])
            memory = model.encoder(tokens, torch.tensor([9, 0]))
            out = out.sum() + model.decoder(zoo.pad(targets), encoder_out=memory)[0].sum()
        loss = out.float().pow(2).mean()
        loss = loss + sum(term.value for _, term in take_losses(model))
        loss.backward()
        assert torch.isfinite(loss)
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@every_pair
def test_half_precision(backbone: str, method: str) -> None:
    """fp16 parameters and activations, fp32 softmax: close to fp32, finite gradients."""
    model = build(backbone, method)
    half = copy.deepcopy(model).half()
    found = [
        zoo.non_padding_outputs(
            zoo.run(m, backbone, SOURCES, TARGETS), backbone, rows_of(backbone)
        ).float()
        for m in (model, half)
    ]
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)
    zoo.run(half.train(), backbone, SOURCES, TARGETS).float().mean().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in half.parameters())


@every_pair
def test_autocast(backbone: str, method: str) -> None:
    """torch's mixed precision (what ``--amp`` switches on for GPUs), here with bfloat16."""
    model = build(backbone, method)
    full = zoo.run(model, backbone, SOURCES, TARGETS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = zoo.run(model, backbone, SOURCES, TARGETS)
        loss = zoo.run(model.train(), backbone, SOURCES, TARGETS).float().square().mean()
    found = [
        zoo.non_padding_outputs(out, backbone, rows_of(backbone)).float() for out in (mixed, full)
    ]
    assert (found[0] - found[1]).abs().mean() < 0.05
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@every_pair
def test_seed_decides_everything(backbone: str, method: str) -> None:
    model = build(backbone, method)
    assert torch.equal(*(zoo.run(model, backbone, SOURCES, TARGETS) for _ in range(2)))
    model.train()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(zoo.run(model, backbone, SOURCES, TARGETS))
    assert torch.equal(found[0], found[1])


@every_pair
def test_retain_dropout_keeps_the_sampling(backbone: str, method: str) -> None:
    model = build(backbone, method)
    mean = zoo.run(model, backbone, SOURCES, TARGETS)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["no such method"])
    assert torch.equal(zoo.run(model, backbone, SOURCES, TARGETS), mean)
    model = build(backbone, method)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=[method])
    samples = [zoo.run(model, backbone, SOURCES, TARGETS) for _ in range(2)]
    model = build(backbone, method).train()
    trained = [zoo.run(model, backbone, SOURCES, TARGETS) for _ in range(2)]
    # A method may be random in training alone (an adversary), never at test time alone.
    assert torch.equal(*samples) or not torch.equal(*trained)


@every_pair
def test_losses_are_left_in_training_only(backbone: str, method: str) -> None:
    model = build(backbone, method)
    zoo.run(model, backbone, SOURCES, TARGETS)
    assert list(take_losses(model)) == []
    model.train()
    loss = zoo.run(model, backbone, SOURCES, TARGETS).float().logsumexp(-1).sum()
    for name, term in take_losses(model):
        assert torch.isfinite(term.value), name
        loss = loss + term.value
    assert list(take_losses(model)) == []
    loss.backward()
    for name, parameter in model.named_parameters():
        # DistributedDataParallel waits for ever for a missing gradient.
        if is_plugin_parameter(name) and parameter.requires_grad:
            assert parameter.grad is not None, name


@every_pair
def test_checkpoints_of_plain_fairseq_and_of_other_methods(backbone: str, method: str) -> None:
    ours = build(backbone, method)
    plain = zoo.build(backbone, seed=2)
    ours.load_state_dict(plain.state_dict(), strict=True)
    loaded = ours.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in plain.state_dict().items())
    for other in METHODS:
        if (backbone, other) in zoo.all_pairs():
            foreign = build(backbone, other, seed=3)
            build(backbone, method).load_state_dict(foreign.state_dict(), strict=True)


@every_pair
def test_copies_are_independent(backbone: str, method: str) -> None:
    """An EMA copy is a deep copy: its layers must talk to its own stacks."""
    model = build(backbone, method)
    twin = copy.deepcopy(model)
    stacks = [{id(m) for m in x.modules()} for x in (model, twin)]
    for module in twin.modules():
        if hasattr(module, "attention_methods"):
            assert id(module.stack) in stacks[1] - stacks[0]
            assert all(
                any(m is known for known in module.stack.methods)
                for m in module.attention_methods.values()
            )
    first, second = (zoo.run(m, backbone, SOURCES, TARGETS) for m in (model, twin))
    assert torch.equal(first, second)


@every_pair
def test_updates_reach_the_schedules(backbone: str, method: str) -> None:
    model = build(backbone, method)
    model.set_num_updates(17)
    methods = [m for m in model.modules() if isinstance(m, AttentionMethod)]
    assert methods
    assert all(m.num_updates == 17 for m in methods)
