"""Replaced tokens: samples of a large softmax, and the likelihood of a guess."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor
from torch.nn.functional import cross_entropy

import zoo
from fairseq_stochattn.replacement import negative_log_likelihood, probabilities, sample_tokens


def drawn(logits: Tensor, count: int, never: int) -> Tensor:
    """How often each token is found in so many samples."""
    draws, chance = logits.expand(count, -1), torch.rand(count, dtype=torch.float64)
    found = sample_tokens(draws, probabilities(draws), chance, never)
    return torch.bincount(found, minlength=len(logits))


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [12, 128, 300])  # less than a block, one, and two with a rest
def test_samples_follow_the_softmax(size: int, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(size) * 1.5).to(precision)
    for never in (zoo.PAD, size - 1):
        counts = drawn(logits, 60_000, never)
        expected = logits.double().softmax(0)
        expected[never] = 0
        assert counts[never] == 0
        others = torch.arange(size) != never
        expected = expected / expected.sum() * 60_000
        assert chisquare(counts[others].numpy(), expected[others].numpy()).pvalue > 1e-3


def test_samples_pass_the_distribution_function_at_their_chance() -> None:
    """Against a search over the whole vocabulary; the ends of the unit interval among them."""
    torch.manual_seed(0)
    p = torch.randn(2000, 300, dtype=torch.float64).softmax(dim=1)
    chance = torch.rand(2000, dtype=torch.float64)
    chance[0], chance[1] = 0.0, 1 - 2**-53
    without = p.clone()
    without[:, 140] = 0
    upto = without.cumsum(dim=1)
    expected = torch.searchsorted(upto, chance[:, None] * upto[:, -1:], right=True).squeeze(1)
    assert torch.equal(sample_tokens(p.log(), p, chance, never=140), expected)


def test_a_token_that_never_comes_may_have_all_the_mass() -> None:
    torch.manual_seed(0)
    logits = torch.randn(200)
    counts = drawn(logits, 20_000, never=3)
    logits[3] = 200.0
    again = drawn(logits, 20_000, never=3)
    assert again[3] == 0
    table = torch.stack([counts, again])[:, counts + again > 0]
    assert chi2_contingency(table.numpy()).pvalue > 1e-3


def test_the_likelihood_of_a_guess_and_its_gradient() -> None:
    """torch's cross-entropy in double precision; no overflow where a target is out of question."""
    torch.manual_seed(0)
    logits = (torch.randn(6, 300, dtype=torch.float64) * 5).requires_grad_()
    targets = torch.randint(300, (6,))
    found = negative_log_likelihood(logits, probabilities(logits), targets)
    expected = cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    slopes = [torch.autograd.grad(3 * loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    far = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = negative_log_likelihood(far, probabilities(far), torch.tensor([1]))
    assert loss.item() == 2e4
    assert torch.autograd.grad(loss, far)[0].tolist() == [[1, -1]]
