"""The loss over a vocabulary equals fairseq's, with its gradient, and needs no stored logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from torch import Tensor

from fairseq_stochattn.core import vocabulary_loss as module
from fairseq_stochattn.core.vocabulary_loss import can_fuse, vocabulary_loss

PAD, WORDS, WIDTH = 1, 23, 6


def inputs(bias: bool = False, padding: bool = True, scale: float = 1.0) -> tuple:
    """Features (3, 5, C), weight, bias and targets in double precision."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, WIDTH, generator=generator, dtype=torch.float64) * scale
    weight = torch.randn(WORDS, WIDTH, generator=generator, dtype=torch.float64)
    b = torch.randn(WORDS, generator=generator, dtype=torch.float64) if bias else None
    targets = torch.randint(4, WORDS, (3, 5), generator=generator)
    if padding:
        targets[1:, 3:] = PAD
    return x, weight, b, targets


def by_fairseq(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, eps: float):
    log_p = F.linear(x, weight, bias).log_softmax(dim=-1)
    return label_smoothed_nll_loss(log_p.view(-1, WORDS), targets.view(-1), eps, ignore_index=PAD)


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("block", [8, 3 * WORDS * 8, 2**24])
def test_loss_and_gradients_are_those_of_fairseq(
    eps: float, bias: bool, padding: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", block)  # one row, three rows, all rows at a time
    x, weight, b, targets = inputs(bias, padding)
    results = []
    for ours in (True, False):
        leaves = [None if t is None else t.clone().requires_grad_() for t in (x, weight, b)]
        if ours:
            loss, nll = vocabulary_loss(*leaves, targets, PAD, eps)
        else:
            loss, nll = by_fairseq(*leaves, targets, eps)
        (loss * 0.7).backward()
        results.append([loss, nll, *(t.grad for t in leaves if t is not None)])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


def test_gradient_of_either_input_alone() -> None:
    x, weight, _, targets = inputs()
    for leaf in (x, weight):
        leaf.requires_grad_()
        loss = vocabulary_loss(x, weight, None, targets, PAD, 0.1).loss
        (grad,) = torch.autograd.grad(loss, leaf)
        (expected,) = torch.autograd.grad(by_fairseq(x, weight, None, targets, 0.1)[0], leaf)
        torch.testing.assert_close(grad, expected)
        leaf.requires_grad_(False)
    assert not vocabulary_loss(x, weight, None, targets, PAD).loss.requires_grad


def test_padding_as_on_a_gpu_gets_the_weight_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the number of targets is not known without a wait, padding stays in the product."""

    def keep_all(x: Tensor, targets: Tensor, padding_idx: int) -> module._Rows:
        return module._Rows(x, targets, None, targets.ne(padding_idx).to(x.dtype).unsqueeze(1))

    x, weight, b, targets = inputs(bias=True)
    results = []
    for each in (module._rows, keep_all):
        monkeypatch.setattr(module, "_rows", each)
        leaves = [t.clone().requires_grad_() for t in (x, weight, b)]
        loss, nll = vocabulary_loss(*leaves, targets, PAD, 0.1)
        loss.backward()
        results.append([loss, nll, *(t.grad for t in leaves)])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


def test_runs_on_the_meta_device() -> None:
    """No CPU tensor is mixed in, and nothing asks for a value."""
    x, weight, b, targets = (t.to("meta") for t in inputs(bias=True))
    loss, _ = vocabulary_loss(x.requires_grad_(), weight.requires_grad_(), b, targets, PAD, 0.1)
    loss.backward()
    assert x.grad.is_meta
    assert weight.grad.shape == weight.shape


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_large_logits_stay_finite(scale: float) -> None:
    x, weight, _, targets = (None if t is None else t for t in inputs(scale=scale))
    x = x.float().requires_grad_()
    loss, _ = vocabulary_loss(x, weight.float(), None, targets, PAD, 0.1)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_only_padding_is_a_loss_of_zero() -> None:
    x, weight, _, targets = inputs()
    x.requires_grad_()
    loss, nll = vocabulary_loss(x, weight, None, torch.full_like(targets, PAD), PAD, 0.1)
    loss.backward()
    assert loss == 0
    assert nll == 0
    assert not x.grad.any()


def test_low_precision_is_left_to_autograd() -> None:
    x, weight, *_ = inputs()
    assert can_fuse(x, weight)
    assert can_fuse(x.float(), weight.float())
    assert not can_fuse(x.half(), weight.half())
    assert not can_fuse(x, weight.float())
    with torch.autocast("cpu"):
        assert not can_fuse(x.float(), weight.float())
