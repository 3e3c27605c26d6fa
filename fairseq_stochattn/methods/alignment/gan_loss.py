"""The loss of the discriminator D with its gradient (Zhang et al. 2021, Eq. 2).

    loss = −Σ p_Q(q)·log D(q) − Σ p_K(k)·log(1 − D(k)),  D(x) = sigmoid(logit(x))

p_Q and p_K are the weights of the queries q and the keys k. The forward pass computes the loss and
its gradients together, one block of tokens after another, so that no activation is stored. This is
possible because the loss is a sum over tokens: the backward pass only multiplies the gradients by
the factor that it receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .networks import highway_backward, highway_forward

# Rows per block on a CPU; a token has one row per head. A block fits into the last-level cache and
# is large enough for fast matrix products (512 rows were too few).
BLOCK = 4096
NEGATIVE_SLOPE = 0.01  # parameter of the leaky ReLU


class DiscriminatorWeights(NamedTuple):
    """The parameters of D, or their gradients, in the order of the layers."""

    head_embedding: Tensor  # (H, d), or (1, d) if D is not conditioned on the head
    highway_weight: Tensor  # (2d, d): rows of Φ_τ, then rows of Φ_h (see ``networks.Highway``)
    highway_bias: Tensor  # (2d,)
    hidden_weight: Tensor  # (e, d): Φ_1, the first layer of the MLP
    hidden_bias: Tensor  # (e,)
    out_weight: Tensor  # (1, e): Φ_2, the second layer of the MLP
    out_bias: Tensor  # (1,)


_NUM_PARAMETERS = len(DiscriminatorWeights._fields)


def gan_loss_block(
    x: Tensor, mass: Tensor, sign: float, weights: DiscriminatorWeights, grads: DiscriminatorWeights
) -> tuple[Tensor, Tensor]:
    """Σ mass·softplus(sign·logit(x)) and its gradient grad_x, for x (n, H, d) and mass (n,).

    The gradients of the parameters are added to ``grads``. The sign is −1 for queries, because
    −log D = softplus(−logit), and 1 for keys, because −log(1 − D) = softplus(logit).
    """
    heads = x.size(1)
    rows = (x + weights.head_embedding).flatten(0, 1)  # (nH, d)
    mixed, gate, transform = highway_forward(rows, weights.highway_weight, weights.highway_bias)
    hidden = torch.addmm(weights.hidden_bias, mixed, weights.hidden_weight.t())  # (nH, e)
    hidden = F.leaky_relu_(hidden, NEGATIVE_SLOPE)
    logit = torch.addmv(weights.out_bias, hidden, weights.out_weight[0]).mul_(sign)  # (nH,)
    row_mass = mass.repeat_interleave(heads)
    loss = F.softplus(logit) @ row_mass

    grad_logit = logit.sigmoid_().mul_(row_mass).mul_(sign)
    grads.out_weight[0].addmv_(hidden.t(), grad_logit)
    grads.out_bias.add_(grad_logit.sum())
    grad_hidden = torch.outer(grad_logit, weights.out_weight[0])
    # True says that ``hidden`` is the output of the leaky ReLU, which has the sign of the input.
    torch.ops.aten.leaky_relu_backward(
        grad_hidden, hidden, NEGATIVE_SLOPE, True, grad_input=grad_hidden
    )
    grads.hidden_weight.addmm_(grad_hidden.t(), mixed)
    grads.hidden_bias.add_(grad_hidden.sum(dim=0))
    grad_mixed = torch.mm(grad_hidden, weights.hidden_weight, out=mixed)
    grad_x = highway_backward(
        grad_mixed,
        rows,
        gate,
        transform,
        weights.highway_weight,
        (grads.highway_weight, grads.highway_bias),
        overwrite=True,
    ).unflatten(0, (-1, heads))
    grads.head_embedding.add_(
        grad_x.sum(dim=0) if len(weights.head_embedding) > 1 else grad_x.sum(dim=(0, 1))
    )
    return loss, grad_x


def input_gradients(x: Tensor, weights: DiscriminatorWeights) -> Tensor:
    """The gradient of the logit with respect to x (n, H, d), of shape (nH, d).

    This is an ordinary forward computation, so that autograd can differentiate it with respect to
    the weights.
    """
    rows = (x + weights.head_embedding).flatten(0, 1)
    gate, transform = F.linear(rows, weights.highway_weight, weights.highway_bias).chunk(2, dim=1)
    gate, transformed = gate.sigmoid(), transform.relu()
    mixed = torch.lerp(rows, transformed, gate)
    hidden = F.linear(mixed, weights.hidden_weight, weights.hidden_bias)
    grad_hidden = torch.where(hidden > 0, 1.0, NEGATIVE_SLOPE) * weights.out_weight  # (nH, e)
    grad_mixed = grad_hidden @ weights.hidden_weight
    grad_transform = grad_mixed * gate
    grad_direct = grad_mixed - grad_transform  # through (1 − τ) ⊙ x
    grad_gate = (transformed - rows) * gate * grad_direct
    grad_both = torch.cat((grad_gate, grad_transform * (transform > 0)), dim=1)
    return torch.addmm(grad_direct, grad_both, weights.highway_weight)


class _GanLoss(torch.autograd.Function):
    """``gan_loss``, with the gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        index: tuple[Tensor | None, Tensor | None],
        mass: tuple[Tensor, Tensor],
        *parameters: Tensor,
    ) -> Tensor:
        weights = DiscriminatorWeights(*parameters)
        grads = DiscriminatorWeights(*(torch.zeros_like(p) for p in parameters))
        losses, grads_q, grads_k = [], [], []  # one entry per block
        for x, x_index, x_mass, sign, grads_x in zip(
            (q, k), index, mass, (-1.0, 1.0), (grads_q, grads_k), strict=True
        ):
            block = len(x_mass) if x.device.type != "cpu" else max(1, BLOCK // x.size(1))
            for start in range(0, len(x_mass), block):
                stop = start + block
                rows = x[start:stop] if x_index is None else x.index_select(0, x_index[start:stop])
                loss, grad_x = gan_loss_block(rows, x_mass[start:stop], sign, weights, grads)
                losses.append(loss)
                grads_x.append(grad_x)
        ctx.save_for_backward(*grads, *grads_q, *grads_k)
        ctx.num_q_blocks, ctx.index, ctx.shapes = len(grads_q), index, (q.shape, k.shape)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grads, blocks = ctx.saved_tensors[:_NUM_PARAMETERS], ctx.saved_tensors[_NUM_PARAMETERS:]
        sides = blocks[: ctx.num_q_blocks], blocks[ctx.num_q_blocks :]
        grad_q_k = [
            scatter_blocks(side, index, shape).mul_(-grad_loss)  # negated: q and k maximise
            for side, index, shape in zip(sides, ctx.index, ctx.shapes, strict=True)
        ]
        return *grad_q_k, None, None, *(grad * grad_loss for grad in grads)


def scatter_blocks(blocks: Sequence[Tensor], index: Tensor | None, shape: torch.Size) -> Tensor:
    """A tensor with the rows of the blocks at ``index`` and zeros elsewhere.

    If ``index`` is None, the result is the concatenation of the blocks.
    """
    if index is None:
        return torch.cat(blocks)
    out = blocks[0].new_zeros(shape)
    for block, rows in zip(blocks, index.split([len(block) for block in blocks]), strict=True):
        out.index_copy_(0, rows, block)
    return out


def gan_loss(
    q: Tensor,
    k: Tensor,
    index: tuple[Tensor | None, Tensor | None],
    mass: tuple[Tensor, Tensor],
    weights: DiscriminatorWeights,
) -> Tensor:
    """Return −Σ mass·log D(q) − Σ mass·log(1 − D(k)). D minimises it, q and k maximise it.

    q and k are (N, H, d). ``index`` selects rows of q and rows of k (None: all rows), and ``mass``
    holds the weight of each selected row.
    """
    return _GanLoss.apply(q, k, index, mass, *weights)
