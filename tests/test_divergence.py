"""The divergences of asa against direct loops in doubles; p_clean is a constant."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor

import zoo
from fairseq_stochattn.criterions.divergence import (
    Predictions,
    adaptive_kl,
    categorical_kl,
    divergence,
)
from fairseq_stochattn.tasks.tagging import IGNORED

B, T, K = 3, 5, 7


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.double).requires_grad_()


def kl(p: Tensor, q: Tensor) -> float:
    """Of two rows of logits, by the definition."""
    exps = [[math.exp(x) for x in row] for row in (p.tolist(), q.tolist())]
    p, q = ([x / sum(row) for x in row] for row in exps)
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))


def found_by(
    name: str,
    clean: list[Tensor],
    attacked: list[Tensor],
    target: Tensor | None = None,
    tokens: Tensor | None = None,
    **settings: object,
) -> Tensor:
    """The divergence under a criterion, which has no more than these settings."""
    model = SimpleNamespace(get_targets=lambda sample, out: target, decoder=SimpleNamespace())
    sample = {"net_input": {"src_tokens": tokens}, "target": target}
    criterion = object.__new__(CRITERION_REGISTRY[name])
    defaults = {"padding_idx": zoo.PAD, "regression_target": False}
    criterion.__dict__.update({**defaults, **settings})
    return divergence(Predictions(model, sample, criterion, clean, attacked))


def test_the_clean_prediction_is_a_constant() -> None:
    clean, attacked = noise(B, K), noise(B, K, seed=1)
    categorical_kl(clean, attacked).sum().backward()
    assert clean.grad is None
    assert attacked.grad.any()
    assert torch.autograd.gradcheck(lambda x: categorical_kl(clean, x), (attacked,))
    assert not categorical_kl(clean, clean.detach().clone()).any()


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("name", ["label_smoothed_cross_entropy", "cross_entropy"])
def test_target_tokens(name: str, prefix: int) -> None:
    clean, attacked = noise(B, T, K), noise(B, T, K, seed=1)
    target = zoo.pad(zoo.sentences(5, 3, 1))
    found = found_by(name, [clean], [attacked], target, ignore_prefix_size=prefix)
    expected = sum(
        kl(clean[b, t], attacked[b, t])
        for b, length in enumerate((5, 3, 1))
        for t in range(prefix, length)
    )
    assert found.item() == pytest.approx(expected)
    assert target.eq(zoo.pad(zoo.sentences(5, 3, 1))).all()


def test_adaptive_softmax() -> None:
    """The chain rule over head and tails against the whole distribution."""
    softmax = AdaptiveSoftmax(20, 6, [5, 12], dropout=0.0).double()
    clean, attacked = noise(B, T, 6), noise(B, T, 6, seed=1)
    with torch.no_grad():
        rows = [softmax.get_log_prob(x, target=None).view(B, T, 20) for x in (clean, attacked)]
    torch.testing.assert_close(adaptive_kl(softmax, clean, attacked), categorical_kl(*rows))
    adaptive_kl(softmax, clean, attacked).sum().backward()
    assert clean.grad is None
    assert attacked.grad.any()


def test_masked_tokens() -> None:
    clean, attacked = noise(4, K), noise(4, K, seed=1)
    expected = sum(kl(clean[n], attacked[n]) for n in range(4))
    assert found_by("masked_lm", [clean], [attacked]).item() == pytest.approx(expected)
    # fairseq projects all tokens where none is masked: they do not count.
    nothing = torch.full((B, T), zoo.PAD)
    every = found_by("masked_lm", [noise(B, T, K)], [noise(B, T, K, seed=1)], nothing)
    assert every.item() == 0
    assert every.requires_grad


def test_replaced_tokens() -> None:
    clean, attacked = noise(B, T), noise(B, T, seed=1)
    tokens = zoo.pad(zoo.sentences(5, 3, 1))
    coin = [torch.stack([x, torch.zeros_like(x)], dim=-1) for x in (clean, attacked)]
    expected = sum(
        kl(coin[0][b, t], coin[1][b, t]) for b, n in enumerate((5, 3, 1)) for t in range(n)
    )
    found = found_by("electra", [clean], [attacked], tokens=tokens)
    assert found.item() == pytest.approx(expected)
    # Far out, where a sigmoid is 0 or 1: finite, and its gradient too.
    far = torch.tensor([[200.0, -200.0]], requires_grad=True)
    found_by("electra", [torch.tensor([[-200.0, 150.0]])], [far], tokens=tokens[:1, :2]).backward()
    assert far.grad.isfinite().all()


def test_tags() -> None:
    clean, attacked = noise(B, T, K), noise(B, T, K, seed=1)
    target = torch.full((B, T), IGNORED)
    target[0, 1], target[0, 3], target[2, 0] = 2, 0, 6
    cells = ((0, 1), (0, 3), (2, 0))
    expected = sum(kl(clean[cell], attacked[cell]) for cell in cells)
    found = found_by("token_tagging", [clean], [attacked], target)
    assert found.item() == pytest.approx(expected)


def test_sentences_classes_and_numbers() -> None:
    name = "sentence_prediction"
    clean, attacked = noise(B, K), noise(B, K, seed=1)
    expected = sum(kl(clean[b], attacked[b]) for b in range(B))
    assert found_by(name, [clean], [attacked]).item() == pytest.approx(expected)
    clean, attacked = noise(B, 1), noise(B, 1, seed=1)
    found = found_by(name, [clean], [attacked], regression_target=True)
    pairs = zip(clean.flatten().tolist(), attacked.flatten().tolist(), strict=True)
    assert found.item() == pytest.approx(sum((p - q) ** 2 for p, q in pairs))
    found.backward()
    assert clean.grad is None


def test_options_of_a_choice() -> None:
    clean = [noise(B, 1, seed=n) for n in range(4)]
    attacked = [noise(B, 1, seed=9 + n) for n in range(4)]
    rows = [torch.cat(x, dim=1) for x in (clean, attacked)]
    expected = sum(kl(rows[0][b], rows[1][b]) for b in range(B))
    found = found_by("sentence_ranking", clean, attacked)
    assert found.item() == pytest.approx(expected)
