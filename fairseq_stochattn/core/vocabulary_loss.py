"""Label-smoothed cross entropy of an output layer, without the log-probabilities of all words.

With features x (N, C), the output layer z = xWᵀ + b over V words, targets t and smoothing ε:

    ε_i  = ε / (V − 1),  c = 1 − ε − ε_i
    nll  = Σ (logsumexp z − z_t)
    loss = c·nll + ε_i·Σ Σ_v (logsumexp z − z_v) = Σ (logsumexp z − c·z_t − ε_i·Σ_v z_v)
    ∂loss/∂z = softmax(z) − c·1[v = t] − ε_i

The gradients of x, W and b are computed in the forward pass, block by block of the rows, while the
logits of a block are still at hand; the logits of all rows are never stored. The sums of z_v and
the constant parts of the gradient are products of small matrices. Padding is left out before the
product, not after it. The definition of the loss is that of fairseq.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .device import reading_is_free

BLOCK_BYTES = 2**24  # of the logits of one block; on a GPU, all rows are one block


class VocabularyLoss(NamedTuple):
    """Sums over all targets, as scalars."""

    loss: Tensor
    nll: Tensor  # without label smoothing and without a gradient


class _Rows(NamedTuple):
    """The rows whose targets count."""

    x: Tensor  # (N, C)
    targets: Tensor  # (N,)
    index: Tensor | None  # (N,): their positions among all rows; None if all are kept
    weight: Tensor | None  # (N, 1): 0 at padding, if padding is kept; otherwise None


def _rows(x: Tensor, targets: Tensor, padding_idx: int) -> _Rows:
    """Leave out padding; on a GPU, give it the weight 0, because its number is not known there."""
    kept = targets.ne(padding_idx)
    if not reading_is_free(x):
        return _Rows(x, targets, None, kept.to(x.dtype).unsqueeze(1))
    index = kept.nonzero().squeeze(1)
    if len(index) == len(targets):
        return _Rows(x, targets, None, None)
    return _Rows(x[index], targets[index], index, None)


class _SmoothedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        padding_idx: int,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        rows = _rows(x, targets, padding_idx)
        words = weight.size(0)
        per_word = smoothing / (words - 1)
        of_target = 1.0 - smoothing - per_word
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_x = torch.empty_like(rows.x) if needs_x else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        log_total = []  # logsumexp z of each block, (n, 1)
        block = len(rows.x)
        if reading_is_free(x):
            block = max(1, BLOCK_BYTES // (words * x.element_size()))
        for start in range(0, len(rows.x), max(1, block)):
            part = slice(start, start + block)
            z = F.linear(rows.x[part], weight, bias)  # (n, V)
            highest = z.amax(dim=1, keepdim=True)
            exp_z = z.sub_(highest).exp_()
            total = exp_z.sum(dim=1, keepdim=True)
            log_total.append(total.log() + highest)
            scale = total.reciprocal_()  # from exp_z to the softmax
            if rows.weight is not None:
                scale = scale * rows.weight[part]
            if needs_x:
                torch.mm(exp_z, weight, out=grad_x[part]).mul_(scale)
            if needs_weight:
                grad_weight.addmm_(exp_z.t(), rows.x[part] * scale)
            if needs_bias:
                grad_bias.addmv_(exp_z.t(), scale.squeeze(1))
        # The parts of the gradient that do not depend on the logits.
        target_weight = weight[rows.targets]  # (N, C)
        target_z = torch.linalg.vecdot(rows.x, target_weight)
        mean_x = rows.x if rows.weight is None else rows.x * rows.weight
        sum_x, sum_weight = mean_x.sum(dim=0), weight.sum(dim=0)
        sum_z = torch.dot(sum_x, sum_weight)
        counts = torch.ones_like(target_z) if rows.weight is None else rows.weight.squeeze(1)
        if bias is not None:
            target_z = target_z + bias[rows.targets]
            sum_z = sum_z + counts.sum() * bias.sum()
        if needs_x:
            grad_x.sub_(per_word * sum_weight).sub_(target_weight, alpha=of_target)
            grad_x = grad_x if rows.weight is None else grad_x.mul_(rows.weight)
        if needs_weight:
            grad_weight.sub_(per_word * sum_x).index_add_(0, rows.targets, mean_x, alpha=-of_target)
        if needs_bias:
            grad_bias.sub_(per_word * counts.sum())
            grad_bias.index_add_(0, rows.targets, counts, alpha=-of_target)
        all_log_total = torch.cat(log_total).squeeze(1) if log_total else target_z
        log_sum = torch.dot(all_log_total, counts)
        target_sum = torch.dot(target_z, counts)
        ctx.save_for_backward(grad_x, grad_weight, grad_bias, rows.index)
        ctx.rows = len(x)
        loss, nll = log_sum - of_target * target_sum - per_word * sum_z, log_sum - target_sum
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight, grad_bias, index = ctx.saved_tensors
        grads = [g if g is None else g * grad_loss for g in (grad_x, grad_weight, grad_bias)]
        if grads[0] is not None and index is not None:
            grads[0] = grads[0].new_zeros(ctx.rows, grad_x.size(1)).index_copy_(0, index, grads[0])
        return *grads, None, None, None


def can_fuse(features: Tensor, weight: Tensor) -> bool:
    """Whether ``vocabulary_loss`` is exact: in fp32 or fp64, without autocast.

    In fp16, small gradients would underflow before the loss is scaled.
    """
    same = features.dtype == weight.dtype and features.dtype in (torch.float32, torch.float64)
    return same and not torch.is_autocast_enabled(features.device.type)


def vocabulary_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    padding_idx: int,
    smoothing: float = 0.0,
) -> VocabularyLoss:
    """The label-smoothed cross entropy of features (…, C) through an output layer.

    ``weight`` is (V, C), ``bias`` (V,) or None, and ``targets`` (…) hold word numbers.
    ``padding_idx`` marks targets that do not count. The module docstring has the equations.
    """
    x = features.reshape(-1, features.size(-1))
    args = (x, weight, bias, targets.reshape(-1), padding_idx, smoothing)
    return VocabularyLoss(*_SmoothedLoss.apply(*args))
