"""Perturbed embeddings: the start, the ball and the ascent by loops, and where they enter."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

import zoo
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.perturbation import (
    Ascent,
    Perturbation,
    embedding_by,
    find_host,
    normal_start,
    uniform_start,
)

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
REAL = zoo.pad(SOURCES).ne(zoo.PAD)  # (4, 9)
LENGTHS = [9, 7, 4, 1]
IN_DOUBLE = {"activation_fn": "relu"}  # fairseq's gelu computes in fp32


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.double, generator=generator)


def test_the_uniform_start_fills_the_ball_by_a_third() -> None:
    """Components in ±ε/√(n·C), so ‖δ_0‖ ≤ ε and E‖δ_0‖² = ε²/3, however long the sentence."""
    like = torch.zeros(4, 9, 400)
    delta = uniform_start(like, REAL, torch.Generator().manual_seed(0), magnitude=0.5)
    assert not delta[~REAL].any()
    for row, length in zip(delta, LENGTHS, strict=True):
        bound = 0.5 / math.sqrt(length * 400)
        assert 0.97 * bound < row.abs().max().item() <= bound
        assert row.square().sum().item() == pytest.approx(0.25 / 3, rel=0.15)


def test_the_normal_start_has_its_deviation() -> None:
    like = torch.zeros(4, 9, 400)
    delta = normal_start(like, REAL, torch.Generator().manual_seed(0), deviation=0.01)
    assert not delta[~REAL].any()
    assert delta[REAL].std().item() == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize("radius", [0, 0.4])
def test_a_step_by_loops(order: float, radius: float) -> None:
    delta, gradient = 0.2 * noise(3, 4, 5), noise(3, 4, 5, seed=1)
    moved = Ascent(0.3, radius, order)(delta, gradient)
    for i in range(3):
        cells = [(t, c) for t in range(4) for c in range(5)]
        size = max(abs(gradient[i, t, c].item()) for t, c in cells)
        if order == 2:
            size = math.sqrt(sum(gradient[i, t, c].item() ** 2 for t, c in cells))
        sums = {(t, c): (delta[i, t, c] + 0.3 * gradient[i, t, c] / size).item() for t, c in cells}
        length = math.sqrt(sum(x**2 for x in sums.values()))
        for (t, c), x in sums.items():
            if radius and order == 2:
                x *= min(1, radius / length)
            elif radius:
                x = min(radius, max(-radius, x))
            assert moved[i, t, c].item() == pytest.approx(x, abs=1e-12)


@pytest.mark.parametrize("order", [2, math.inf])
def test_the_ball_holds_and_lost_gradients_move_nothing(order: float) -> None:
    ascent = Ascent(0.3, 0.4, order)
    delta = torch.zeros(2, 4, 5, dtype=torch.double)
    for seed in range(20):
        delta = ascent(delta, noise(2, 4, 5, seed=seed))
        assert torch.linalg.vector_norm(delta, order, dim=(1, 2)).max() <= 0.4 + 1e-12
    broken = torch.zeros(2, 4, 5, dtype=torch.double)
    broken[1, 0, 0] = math.inf
    torch.testing.assert_close(ascent(delta, broken), delta)
    assert not ascent(torch.zeros_like(delta), torch.zeros_like(delta)).any()


def build(backbone: str) -> torch.nn.Module:
    """Encoder and decoder share their embedding where they can."""
    shared = {"share_all_embeddings": True} if backbone in ("transformer", "lstm") else {}
    return zoo.build(f"{backbone}_deterministic", **shared)


@pytest.mark.parametrize("backbone", zoo.BACKBONES)
def test_the_input_alone_is_changed_once(backbone: str) -> None:
    """Of an encoder-decoder the source, also where the decoder has the same embedding."""
    model = build(backbone).eval()
    plain = zoo.run(model, backbone, SOURCES, TARGETS)
    seen = []

    def change(embedded: Tensor, real: Tensor) -> Tensor:
        seen.append((embedded.shape[:2], real))
        return embedded + 1

    with embedding_by(model, change):
        changed = zoo.run(model, backbone, SOURCES, TARGETS)
    rows = zoo.shift(TARGETS) if backbone == "transformer_lm" else SOURCES
    ((shape, real),) = seen
    assert shape == zoo.pad(rows).shape
    assert torch.equal(real, zoo.pad(rows).ne(zoo.PAD))
    assert not torch.allclose(plain, changed)
    assert torch.equal(zoo.run(model, backbone, SOURCES, TARGETS), plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_generator_of_electra_is_left_alone() -> None:
    model = zoo.build("electra_deterministic", for_task=zoo.task(needs_generator=True)).eval()
    tokens = zoo.pad(SOURCES)
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[:, 0] = True
    gumbel = torch.zeros(4, zoo.VOCABULARY)
    _, plain = model(tokens, masked_tokens=masked, noise=gumbel)
    calls = []
    with embedding_by(model, lambda x, real: calls.append(real) or x + 1):
        _, changed = model(tokens, masked_tokens=masked, noise=gumbel)
    assert len(calls) == 1
    assert torch.equal(plain["guesses"], changed["guesses"])


def test_a_model_without_embeddings_is_refused() -> None:
    with pytest.raises(UsageError, match="no embedding of tokens"):
        find_host(torch.nn.Linear(2, 2))


def squares(model: torch.nn.Module, perturbation: Perturbation, **batch: object) -> Tensor:
    """Some function of the outputs at real tokens, one number a sentence."""
    with perturbation.applied(model):
        out = zoo.run(model, "roberta", SOURCES, SOURCES, **batch)
    rows = zoo.real_positions(out, "roberta", SOURCES, left=batch.get("left", False))
    return torch.stack([x.square().sum() for x in rows.split(LENGTHS)])


def test_the_ascent_raises_every_sentence_by_its_slope() -> None:
    """A step of length α up the gradient of a sentence: α·‖g‖, to first order."""
    model = zoo.build("roberta_deterministic", **IN_DOUBLE).double().train()
    perturbation = Perturbation(partial(uniform_start, magnitude=0.1))
    before = squares(model, perturbation)
    (gradient,) = torch.autograd.grad(before.sum(), perturbation.deltas, retain_graph=True)
    perturbation.ascend(before.sum(), Ascent(1e-7, 0, order=2))
    rise = squares(model, perturbation) - before
    slope = 1e-7 * gradient.square().sum(dim=(1, 2)).sqrt()
    assert (slope > 0).all()
    torch.testing.assert_close(rise, slope, rtol=1e-3, atol=0)
    assert all(p.grad is None for p in model.parameters())


def test_padding_is_neither_perturbed_nor_felt() -> None:
    model = zoo.build("roberta_deterministic", **IN_DOUBLE).double().train()
    found = []
    for batch in ({}, {"width": 14}, {"width": 14, "left": True}):
        perturbation = Perturbation(partial(uniform_start, magnitude=0.0))
        squares(model, perturbation, **batch)
        for _ in range(2):
            value = squares(model, perturbation, **batch)
            perturbation.ascend(value.sum(), Ascent(0.2, 0.3, order=2))
        (delta,) = perturbation.deltas
        tokens = zoo.pad(SOURCES, **batch)
        assert not delta[tokens.eq(zoo.PAD)].any()
        found.append((squares(model, perturbation, **batch), delta[tokens.ne(zoo.PAD)]))
    assert 0.2 < perturbation.size(2).item() <= 0.3
    for value, delta in found[1:]:
        torch.testing.assert_close(value, found[0][0])
        torch.testing.assert_close(delta, found[0][1])
