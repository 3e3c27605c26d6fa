"""The softmax for short rows equals torch's, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fairseq_stochattn.core.softmax import MIN_ROWS, VECTOR, log_softmax, softmax

SHAPES = [(MIN_ROWS, 1, keys) for keys in (1, 2, 15, VECTOR, 17)] + [(2, 3, 5), (4, 30, 2, 7)]


def masked_logits(shape: tuple[int, ...]) -> Tensor:
    logits = 5 * torch.randn(shape, dtype=torch.double)
    hidden = torch.rand(shape) < 0.3
    hidden[..., 0] = False
    return logits.masked_fill(hidden, float("-inf"))


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torch(shape: tuple[int, ...]) -> None:
    logits = masked_logits(shape).requires_grad_()
    twin = logits.detach().clone().requires_grad_()
    grad = torch.randn(shape, dtype=torch.double)
    ours, theirs = softmax(logits), twin.softmax(dim=-1)
    ours.backward(grad)
    theirs.backward(grad)
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(logits.grad, twin.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(log_softmax(logits), twin.log_softmax(dim=-1), rtol=0, atol=1e-12)


def test_computes_in_the_given_precision() -> None:
    logits = torch.randn(MIN_ROWS, 5, dtype=torch.half)
    expected = logits.float().softmax(dim=-1)
    torch.testing.assert_close(softmax(logits, torch.float), expected, rtol=0, atol=1e-6)
