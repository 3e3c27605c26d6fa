"""The divergences of asa against direct loops in double precision; p_clean has no gradient."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor

import zoo
from fairseq_stochattn.core.divergences import Divergence, categorical_kl
from fairseq_stochattn.criterions.predictions import PairedPredictions, divergence
from fairseq_stochattn.tasks.token_tagging import IGNORED

B, T, K = 3, 5, 7


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.double).requires_grad_()


def kl(p: Tensor, q: Tensor) -> float:
    """KL of two rows of logits, by its definition."""
    exps = [[math.exp(x) for x in row] for row in (p.tolist(), q.tolist())]
    p, q = ([x / sum(row) for x in row] for row in exps)
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))


def divergence_by(
    name: str,
    clean: list[Tensor],
    adversarial: list[Tensor],
    target: Tensor | None = None,
    tokens: Tensor | None = None,
    **settings: object,
) -> Tensor:
    """The divergence for a task's criterion that has only these settings."""
    model = SimpleNamespace(get_targets=lambda sample, out: target, decoder=SimpleNamespace())
    sample = {"net_input": {"src_tokens": tokens}, "target": target}
    criterion = object.__new__(CRITERION_REGISTRY[name])
    defaults = {"padding_idx": zoo.PAD, "regression_target": False}
    criterion.__dict__.update({**defaults, **settings})
    return divergence(PairedPredictions(model, sample, criterion, clean, adversarial))


def test_the_clean_prediction_receives_no_gradient() -> None:
    clean, adversarial = noise(B, K), noise(B, K, seed=1)
    categorical_kl(clean, adversarial).sum().backward()
    assert clean.grad is None
    assert adversarial.grad.any()
    assert torch.autograd.gradcheck(lambda x: categorical_kl(clean, x), (adversarial,))
    assert not categorical_kl(clean, clean.detach().clone()).any()


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("name", ["label_smoothed_cross_entropy", "cross_entropy"])
def test_target_tokens(name: str, prefix: int) -> None:
    clean, adversarial = noise(B, T, K), noise(B, T, K, seed=1)
    target = zoo.pad(zoo.sentences(5, 3, 1))
    found = divergence_by(name, [clean], [adversarial], target, ignore_prefix_size=prefix)
    expected = sum(
        kl(clean[b, t], adversarial[b, t])
        for b, length in enumerate((5, 3, 1))
        for t in range(prefix, length)
    )
    assert found.item() == pytest.approx(expected)
    assert target.eq(zoo.pad(zoo.sentences(5, 3, 1))).all()


KINDS = [Divergence(symmetric, both) for symmetric in (False, True) for both in (False, True)]


@pytest.mark.parametrize("between", KINDS, ids=str)
def test_kinds_of_divergence(between: Divergence) -> None:
    """Values by the definition; the clean prediction has a gradient only if it is asked for."""
    clean, adversarial = noise(B, K), noise(B, K, seed=1)
    found = between(clean, adversarial)
    for row in range(B):
        expected = kl(clean[row], adversarial[row])
        if between.symmetric:
            expected += kl(adversarial[row], clean[row])
        assert found[row].item() == pytest.approx(expected)
    found.sum().backward()
    assert (clean.grad is not None) == between.clean_gradient
    assert adversarial.grad.any()
    inputs = (clean.detach().requires_grad_(between.clean_gradient), adversarial)
    assert torch.autograd.gradcheck(between, inputs)
    value = between.of_values(inputs[0], adversarial)
    assert value.item() == pytest.approx((clean - adversarial).square().sum().item())


@pytest.mark.parametrize("between", KINDS, ids=str)
def test_adaptive_softmax(between: Divergence) -> None:
    """The chain rule over head and tails equals the divergence of the whole distribution."""
    softmax = AdaptiveSoftmax(20, 6, [5, 12], dropout=0.0).double()
    clean, adversarial = noise(B, T, 6), noise(B, T, 6, seed=1)
    inputs, grads = (clean, adversarial), []
    # get_log_prob writes in place, so that it has no gradient of its own.
    for found in (
        between.adaptive(softmax, clean, adversarial),
        between(*(log_probabilities(softmax, x) for x in inputs)),
    ):
        grads.append((found, *torch.autograd.grad(found.sum(), inputs, allow_unused=True)))
    for found, expected in zip(*grads, strict=True):
        if expected is None or (not between.clean_gradient and found is None):
            assert found is None
        else:
            torch.testing.assert_close(found, expected)


def log_probabilities(softmax: AdaptiveSoftmax, features: Tensor) -> Tensor:
    """(B, T, C) → (B, T, words): head and tails multiplied out, with gradient."""
    head = softmax.head(features).log_softmax(dim=-1)
    parts = [head[..., : softmax.cutoff[0]]]
    for cluster, tail in enumerate(softmax.tail, start=softmax.cutoff[0]):
        parts.append(head[..., cluster, None] + tail(features).log_softmax(dim=-1))
    return torch.cat(parts, dim=-1)


def test_masked_tokens() -> None:
    clean, adversarial = noise(4, K), noise(4, K, seed=1)
    expected = sum(kl(clean[n], adversarial[n]) for n in range(4))
    assert divergence_by("masked_lm", [clean], [adversarial]).item() == pytest.approx(expected)
    # If no token is masked, fairseq projects all tokens; they must not count.
    nothing = torch.full((B, T), zoo.PAD)
    every = divergence_by("masked_lm", [noise(B, T, K)], [noise(B, T, K, seed=1)], nothing)
    assert every.item() == 0
    assert every.requires_grad


def test_replaced_tokens() -> None:
    clean, adversarial = noise(B, T), noise(B, T, seed=1)
    tokens = zoo.pad(zoo.sentences(5, 3, 1))
    coin = [torch.stack([x, torch.zeros_like(x)], dim=-1) for x in (clean, adversarial)]
    expected = sum(
        kl(coin[0][b, t], coin[1][b, t]) for b, n in enumerate((5, 3, 1)) for t in range(n)
    )
    found = divergence_by("electra", [clean], [adversarial], tokens=tokens)
    assert found.item() == pytest.approx(expected)
    # Finite even where a sigmoid is 0 or 1, and so is the gradient.
    far = torch.tensor([[200.0, -200.0]], requires_grad=True)
    divergence_by(
        "electra", [torch.tensor([[-200.0, 150.0]])], [far], tokens=tokens[:1, :2]
    ).backward()
    assert far.grad.isfinite().all()


def test_tags() -> None:
    clean, adversarial = noise(B, T, K), noise(B, T, K, seed=1)
    target = torch.full((B, T), IGNORED)
    target[0, 1], target[0, 3], target[2, 0] = 2, 0, 6
    tagged = ((0, 1), (0, 3), (2, 0))
    expected = sum(kl(clean[position], adversarial[position]) for position in tagged)
    found = divergence_by("token_tagging", [clean], [adversarial], target)
    assert found.item() == pytest.approx(expected)


def test_sentences_classes_and_numbers() -> None:
    name = "sentence_prediction"
    clean, adversarial = noise(B, K), noise(B, K, seed=1)
    expected = sum(kl(clean[b], adversarial[b]) for b in range(B))
    assert divergence_by(name, [clean], [adversarial]).item() == pytest.approx(expected)
    clean, adversarial = noise(B, 1), noise(B, 1, seed=1)
    found = divergence_by(name, [clean], [adversarial], regression_target=True)
    pairs = zip(clean.flatten().tolist(), adversarial.flatten().tolist(), strict=True)
    assert found.item() == pytest.approx(sum((p - q) ** 2 for p, q in pairs))
    found.backward()
    assert clean.grad is None


def test_options_of_a_choice() -> None:
    clean = [noise(B, 1, seed=n) for n in range(4)]
    adversarial = [noise(B, 1, seed=9 + n) for n in range(4)]
    rows = [torch.cat(x, dim=1) for x in (clean, adversarial)]
    expected = sum(kl(rows[0][b], rows[1][b]) for b in range(B))
    found = divergence_by("sentence_ranking", clean, adversarial)
    assert found.item() == pytest.approx(expected)
