"""The discriminator's loss and its gradient in one go (alignment attention, Eq. 2).

The loss is a weighted sum over tokens, so all gradients are known up to one factor as soon as a
token is judged. They are computed in the forward pass, block after block of tokens, and the
backward pass multiplies by the factor: no activation is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_stochattn.gradients import highway_backward, highway_forward

# Vectors (a token has one a head) in a block on a CPU: few enough for its last cache, many enough
# for matrix products at full speed, which 512 were not.
BLOCK = 4096
SLOPE = 0.01  # of the leaky ReLU


class Judge(NamedTuple):
    """The parameters of D, in the order in which it uses them."""

    told: Tensor  # (H, d) or (1, d): added to the vectors
    highway_weight: Tensor  # (2d, d)
    highway_bias: Tensor
    hidden_weight: Tensor  # (e, d)
    hidden_bias: Tensor
    out_weight: Tensor  # (1, e)
    out_bias: Tensor


_PARAMETERS = len(Judge._fields)


def judge_block(x: Tensor, mass: Tensor, sign: float, judge: Judge, grads: Judge) -> tuple:
    """Σ mass·softplus(sign·D(x)) of x (n, H, d) with mass (n,) and its gradient by x; those by the
    parameters are added to ``grads``."""
    heads = x.size(1)
    rows = (x + judge.told).flatten(0, 1)  # (nH, d)
    mixed, gate, transform = highway_forward(rows, judge.highway_weight, judge.highway_bias)
    hidden = torch.addmm(judge.hidden_bias, mixed, judge.hidden_weight.t())  # (nH, e)
    hidden = F.leaky_relu_(hidden, SLOPE)
    logit = torch.addmv(judge.out_bias, hidden, judge.out_weight[0]).mul_(sign)  # (nH,)
    weight = mass.repeat_interleave(heads)
    loss = F.softplus(logit) @ weight

    of_logit = logit.sigmoid_().mul_(weight).mul_(sign)
    grads.out_weight[0].addmv_(hidden.t(), of_logit)
    grads.out_bias.add_(of_logit.sum())
    of_hidden = torch.outer(of_logit, judge.out_weight[0])
    # By the sign of what came out, which the leaky ReLU has kept.
    torch.ops.aten.leaky_relu_backward(of_hidden, hidden, SLOPE, True, grad_input=of_hidden)
    grads.hidden_weight.addmm_(of_hidden.t(), mixed)
    grads.hidden_bias.add_(of_hidden.sum(dim=0))
    dx = highway_backward(
        torch.mm(of_hidden, judge.hidden_weight, out=mixed),
        rows,
        gate,
        transform,
        judge.highway_weight,
        (grads.highway_weight, grads.highway_bias),
        overwrite=True,
    ).unflatten(0, (-1, heads))
    grads.told.add_(dx.sum(dim=0) if len(judge.told) > 1 else dx.sum(dim=(0, 1)))
    return loss, dx


def slopes(x: Tensor, judge: Judge) -> Tensor:
    """∇D(x) of x (n, H, d) before the sigmoid, (nH, d), written out: a graph to differentiate."""
    rows = (x + judge.told).flatten(0, 1)
    gate, transform = F.linear(rows, judge.highway_weight, judge.highway_bias).chunk(2, dim=1)
    gate, transformed = gate.sigmoid(), transform.relu()
    mixed = torch.lerp(rows, transformed, gate)
    hidden = F.linear(mixed, judge.hidden_weight, judge.hidden_bias)
    of_hidden = torch.where(hidden > 0, 1.0, SLOPE) * judge.out_weight  # (nH, e)
    of_mixed = of_hidden @ judge.hidden_weight
    of_transform = of_mixed * gate
    direct = of_mixed - of_transform
    of_gate = (transformed - rows) * gate * direct
    of_both = torch.cat((of_gate, of_transform * (transform > 0)), dim=1)
    return torch.addmm(direct, of_both, judge.highway_weight)


class _Judgement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        index: tuple[Tensor | None, Tensor | None],
        mass: tuple[Tensor, Tensor],
        *parameters: Tensor,
    ) -> Tensor:
        judge = Judge(*parameters)
        grads = Judge(*(torch.zeros_like(p) for p in parameters))
        losses, slopes = [], ([], [])
        for x, at, masses, sign, found in zip(
            (q, k), index, mass, (-1.0, 1.0), slopes, strict=True
        ):
            block = len(masses) if x.device.type != "cpu" else max(1, BLOCK // x.size(1))
            for start in range(0, len(masses), block):
                stop = start + block
                rows = x[start:stop] if at is None else x.index_select(0, at[start:stop])
                loss, dx = judge_block(rows, masses[start:stop], sign, judge, grads)
                losses.append(loss)
                found.append(dx)
        ctx.save_for_backward(*grads, *slopes[0], *slopes[1])
        ctx.blocks, ctx.index, ctx.shapes = len(slopes[0]), index, (q.shape, k.shape)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        grads, slopes = ctx.saved_tensors[:_PARAMETERS], ctx.saved_tensors[_PARAMETERS:]
        sides = slopes[: ctx.blocks], slopes[ctx.blocks :]
        ascent = [
            scattered(blocks, index, shape).mul_(-gradient)  # queries and keys climb
            for blocks, index, shape in zip(sides, ctx.index, ctx.shapes, strict=True)
        ]
        return *ascent, None, None, *(g * gradient for g in grads)


def scattered(blocks: Sequence[Tensor], index: Tensor | None, shape: torch.Size) -> Tensor:
    """The rows of the blocks at ``index`` of a tensor of zeros; None: one after the other."""
    if index is None:
        return torch.cat(blocks)
    rows = blocks[0].new_zeros(shape)
    for part, at in zip(blocks, index.split([len(part) for part in blocks]), strict=True):
        rows.index_copy_(0, at, part)
    return rows


def judgement(
    q: Tensor,
    k: Tensor,
    index: tuple[Tensor | None, Tensor | None],
    mass: tuple[Tensor, Tensor],
    judge: Judge,
) -> Tensor:
    """−Σ mass·log D(q) − Σ mass·log(1 − D(k)), which the judge descends and q and k climb.

    q and k are (N, H, d); ``index`` says which rows of them count (None: all), ``mass`` how much
    each of these does.
    """
    return _Judgement.apply(q, k, index, mass, *judge)
