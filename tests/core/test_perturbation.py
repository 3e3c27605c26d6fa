"""Perturbed embeddings: initial noise, projection, gradient ascent, and what is perturbed."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

import zoo
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.perturbation import (
    Ascent,
    Perturbation,
    changed_embeddings,
    find_embedding_module,
)
from fairseq_stochattn.methods.freelb import uniform_start
from fairseq_stochattn.methods.smart import normal_start

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
REAL = zoo.pad(SOURCES).ne(zoo.PAD)  # (4, 9), False at padding
LENGTHS = [9, 7, 4, 1]
IN_DOUBLE = {"activation_fn": "relu"}  # not gelu: fairseq's computes in fp32


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.double, generator=generator)


def test_uniform_start_has_a_third_of_the_largest_squared_norm() -> None:
    """The components of δ are uniform in ±ε/√(n·C), where ε is the magnitude.

    So ‖δ‖ ≤ ε and E‖δ‖² = ε²/3 for every sentence length n.
    """
    like = torch.zeros(4, 9, 400)
    delta = uniform_start(like, REAL, torch.Generator().manual_seed(0), magnitude=0.5)
    assert not delta[~REAL].any()
    for row, length in zip(delta, LENGTHS, strict=True):
        bound = 0.5 / math.sqrt(length * 400)
        assert 0.97 * bound < row.abs().max().item() <= bound
        assert row.square().sum().item() == pytest.approx(0.25 / 3, rel=0.15)


def test_normal_start_has_its_standard_deviation() -> None:
    like = torch.zeros(4, 9, 400)
    delta = normal_start(like, REAL, torch.Generator().manual_seed(0), deviation=0.01)
    assert not delta[~REAL].any()
    assert delta[REAL].std().item() == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize("radius", [0, 0.4])
def test_step_equals_explicit_loops(order: float, radius: float) -> None:
    delta, grad = 0.2 * noise(3, 4, 5), noise(3, 4, 5, seed=1)
    moved = Ascent(0.3, radius, order)(delta, grad)
    for i in range(3):
        positions = [(t, c) for t in range(4) for c in range(5)]
        norm = max(abs(grad[i, t, c].item()) for t, c in positions)
        if order == 2:
            norm = math.sqrt(sum(grad[i, t, c].item() ** 2 for t, c in positions))
        steps = {(t, c): (delta[i, t, c] + 0.3 * grad[i, t, c] / norm).item() for t, c in positions}
        length = math.sqrt(sum(x**2 for x in steps.values()))
        for (t, c), x in steps.items():
            if radius and order == 2:
                x *= min(1, radius / length)
            elif radius:
                x = min(radius, max(-radius, x))
            assert moved[i, t, c].item() == pytest.approx(x, abs=1e-12)


@pytest.mark.parametrize("order", [2, math.inf])
def test_norm_is_bounded_and_bad_gradients_are_ignored(order: float) -> None:
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
    """A model whose encoder and decoder share one embedding, if it has both."""
    shared = {"share_all_embeddings": True} if backbone in ("transformer", "lstm") else {}
    return zoo.build(f"{backbone}_deterministic", **shared)


# GraphWriter embeds the words of entities, not of one source.
@pytest.mark.parametrize("backbone", [name for name in zoo.BACKBONES if name != "graph_writer"])
def test_only_the_input_embedding_is_changed(backbone: str) -> None:
    """In an encoder-decoder only the source changes, even if the decoder shares the embedding."""
    model = build(backbone).eval()
    plain = zoo.run(model, backbone, SOURCES, TARGETS)
    calls = []

    def change(embedded: Tensor, real: Tensor) -> Tensor:
        calls.append((embedded.shape[:2], real))
        return embedded + 1

    with changed_embeddings(model, change):
        changed = zoo.run(model, backbone, SOURCES, TARGETS)
    rows = zoo.shift(TARGETS) if backbone == "transformer_lm" else SOURCES
    ((shape, real),) = calls
    assert shape == zoo.pad(rows).shape
    assert torch.equal(real, zoo.pad(rows).ne(zoo.PAD))
    assert not torch.allclose(plain, changed)
    assert torch.equal(zoo.run(model, backbone, SOURCES, TARGETS), plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_generator_of_electra_is_not_perturbed() -> None:
    model = zoo.build("electra_deterministic", for_task=zoo.task(needs_generator=True)).eval()
    tokens = zoo.pad(SOURCES)
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[:, 0] = True
    gumbel = torch.zeros(4, zoo.VOCABULARY)
    _, plain = model(tokens, masked_tokens=masked, noise=gumbel)
    calls = []
    with changed_embeddings(model, lambda x, real: calls.append(real) or x + 1):
        _, changed = model(tokens, masked_tokens=masked, noise=gumbel)
    assert len(calls) == 1
    assert torch.equal(plain["guesses"], changed["guesses"])


def test_model_without_embeddings_is_rejected() -> None:
    with pytest.raises(InputError, match="no embedding of tokens"):
        find_embedding_module(torch.nn.Linear(2, 2))


def sum_of_squares(model: torch.nn.Module, perturbation: Perturbation, **batch: object) -> Tensor:
    """The sum of squared outputs at non-padding tokens, one number per sentence."""
    with perturbation.applied(model):
        out = zoo.run(model, "roberta", SOURCES, SOURCES, **batch)
    rows = zoo.non_padding_outputs(out, "roberta", SOURCES, left=batch.get("left", False))
    return torch.stack([x.square().sum() for x in rows.split(LENGTHS)])


def test_ascent_increases_the_objective_of_every_sentence() -> None:
    """To first order, a step of length α along the gradient g of a sentence adds α·‖g‖."""
    model = zoo.build("roberta_deterministic", **IN_DOUBLE).double().train()
    perturbation = Perturbation(partial(uniform_start, magnitude=0.1))
    before = sum_of_squares(model, perturbation)
    (grad_delta,) = torch.autograd.grad(before.sum(), perturbation.deltas, retain_graph=True)
    perturbation.ascend(before.sum(), Ascent(1e-7, 0, order=2))
    increase = sum_of_squares(model, perturbation) - before
    expected = 1e-7 * grad_delta.square().sum(dim=(1, 2)).sqrt()
    assert (expected > 0).all()
    torch.testing.assert_close(increase, expected, rtol=1e-3, atol=0)
    assert all(p.grad is None for p in model.parameters())


def test_padding_is_not_perturbed_and_has_no_effect() -> None:
    model = zoo.build("roberta_deterministic", **IN_DOUBLE).double().train()
    found = []
    for batch in ({}, {"width": 14}, {"width": 14, "left": True}):
        perturbation = Perturbation(partial(uniform_start, magnitude=0.0))
        sum_of_squares(model, perturbation, **batch)
        for _ in range(2):
            value = sum_of_squares(model, perturbation, **batch)
            perturbation.ascend(value.sum(), Ascent(0.2, 0.3, order=2))
        (delta,) = perturbation.deltas
        tokens = zoo.pad(SOURCES, **batch)
        assert not delta[tokens.eq(zoo.PAD)].any()
        found.append((sum_of_squares(model, perturbation, **batch), delta[tokens.ne(zoo.PAD)]))
    assert 0.2 < perturbation.size(2).item() <= 0.3
    for value, delta in found[1:]:
        torch.testing.assert_close(value, found[0][0])
        torch.testing.assert_close(delta, found[0][1])
