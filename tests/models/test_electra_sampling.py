"""ELECTRA's generator: sampling of replacement tokens from a large softmax, and the loss."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor
from torch.nn.functional import cross_entropy

import zoo
from fairseq_stochattn.models.electra_sampling import (
    negative_log_likelihood,
    probabilities,
    sample_tokens,
)


def token_counts(logits: Tensor, count: int, excluded: int) -> Tensor:
    """How often each token occurs in ``count`` samples, (V,)."""
    rows, chance = logits.expand(count, -1), torch.rand(count, dtype=torch.float64)
    samples = sample_tokens(rows, probabilities(rows), chance, excluded)
    return torch.bincount(samples, minlength=len(logits))


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
# Sampling divides the vocabulary into blocks of 128 tokens: these sizes are less than one block,
# exactly one block, and two blocks with a remainder.
@pytest.mark.parametrize("size", [12, 128, 300])
def test_samples_follow_the_softmax(size: int, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(size) * 1.5).to(precision)
    for excluded in (zoo.PAD, size - 1):
        counts = token_counts(logits, 60_000, excluded)
        expected = logits.double().softmax(0)
        expected[excluded] = 0
        assert counts[excluded] == 0
        others = torch.arange(size) != excluded
        expected = expected / expected.sum() * 60_000
        assert chisquare(counts[others].numpy(), expected[others].numpy()).pvalue > 1e-3


def test_samples_invert_the_distribution_function() -> None:
    """The samples equal those of a search over the whole vocabulary, at both ends of [0, 1) too."""
    torch.manual_seed(0)
    p = torch.randn(2000, 300, dtype=torch.float64).softmax(dim=1)
    chance = torch.rand(2000, dtype=torch.float64)
    chance[0], chance[1] = 0.0, 1 - 2**-53
    others = p.clone()
    others[:, 140] = 0
    total = others.cumsum(dim=1)
    expected = torch.searchsorted(total, chance[:, None] * total[:, -1:], right=True).squeeze(1)
    assert torch.equal(sample_tokens(p.log(), p, chance, excluded=140), expected)


def test_excluded_token_may_have_all_the_mass() -> None:
    torch.manual_seed(0)
    logits = torch.randn(200)
    counts = token_counts(logits, 20_000, excluded=3)
    logits[3] = 200.0
    again = token_counts(logits, 20_000, excluded=3)
    assert again[3] == 0
    table = torch.stack([counts, again])[:, counts + again > 0]
    assert chi2_contingency(table.numpy()).pvalue > 1e-3


def test_generator_loss_and_its_gradient() -> None:
    """Loss and gradient equal torch's in double precision; tiny probabilities do not overflow."""
    torch.manual_seed(0)
    logits = (torch.randn(6, 300, dtype=torch.float64) * 5).requires_grad_()
    targets = torch.randint(300, (6,))
    found = negative_log_likelihood(logits, probabilities(logits), targets)
    expected = cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(3 * loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
    far = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = negative_log_likelihood(far, probabilities(far), torch.tensor([1]))
    assert loss.item() == 2e4
    assert torch.autograd.grad(loss, far)[0].tolist() == [[1, -1]]
