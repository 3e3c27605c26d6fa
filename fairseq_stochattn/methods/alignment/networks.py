"""The networks of alignment attention (Zhang et al. 2021, §2.3.1): highway, MLP, head embedding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ...core.gradients import reverse_gradient


def run(network: nn.Module, x: Tensor, adversary: bool = False, rate: float = 1.0) -> Tensor:
    """Apply a network in the precision of x, even if the model has lower precision.

    With ``adversary``, the gradient of the network's parameters is reversed, so that they maximise
    the loss that all other parameters minimise. The gradient of x is not reversed. The stored
    parameters are multiplied by ``rate``, so that Adam and similar optimizers train the network
    with ``rate`` times the learning rate.
    """
    parameters = {name: p.to(x.dtype) for name, p in network.named_parameters()}
    if rate != 1:
        parameters = {name: p * rate for name, p in parameters.items()}
    if adversary:
        parameters = {name: reverse_gradient(p) for name, p in parameters.items()}
    return functional_call(network, parameters, (x,))


class Highway(nn.Module):
    """A highway layer, τ ⊙ ReLU(Φ_h(x)) + (1 − τ) ⊙ x with the gate τ = sigmoid(Φ_τ(x)) (§2.3.1).

    Φ_h and Φ_τ are linear layers.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate_and_transform = nn.Linear(dim, 2 * dim)  # rows: Φ_τ, then Φ_h

    def forward(self, x: Tensor) -> Tensor:
        return highway(x, self.gate_and_transform.weight, self.gate_and_transform.bias)


def mlp(dim: int, hidden: int, out: int) -> list[nn.Module]:
    """The layers of Φ_2(LeakyReLU(Φ_1(x))), where Φ_1 and Φ_2 are linear layers."""
    return [nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, out)]


class HeadEmbedding(nn.Module):
    """Adds a learned vector per head to x (N, H, d), which conditions a network on the head."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight  # (N, H, d)


def plain_highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The formula of ``Highway`` for x (…, d), differentiated by autograd.

    The rows of ``weight`` (2d, d) and ``bias`` (2d,) are those of Φ_τ, then those of Φ_h.
    """
    gate, transform = F.linear(x, weight, bias).chunk(2, dim=-1)
    return torch.lerp(x, transform.relu(), gate.sigmoid())


def highway_forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``plain_highway`` of x (N, d) and, for the backward pass, τ and ReLU(Φ_h(x)).

    There are two matrix products instead of one, because the operators after them are faster on
    contiguous tensors.
    """
    (w_gate, w_transform), (b_gate, b_transform) = weight.chunk(2), bias.chunk(2)
    gate = torch.addmm(b_gate, x, w_gate.t()).sigmoid_()
    transform = torch.addmm(b_transform, x, w_transform.t()).relu_()
    return torch.lerp(x, transform, gate), gate, transform


def highway_backward(
    grad_out: Tensor,
    x: Tensor,
    gate: Tensor,
    transform: Tensor,
    weight: Tensor,
    grad_parameters: tuple[Tensor, Tensor],
    overwrite: bool = False,
) -> Tensor:
    """Return grad_x (N, d); add the gradients of weight and bias to ``grad_parameters``.

    ``gate`` and ``transform`` are τ and ReLU(Φ_h(x)). With ``overwrite``, results are written into
    the memory of ``grad_out`` and ``transform``.
    """
    grad_transform = grad_out * gate
    # (1 − τ) ⊙ grad_out
    grad_x = torch.sub(grad_out, grad_transform, out=grad_out if overwrite else None)
    torch.ops.aten.threshold_backward(grad_transform, transform, 0, grad_input=grad_transform)
    grad_gate = torch.sub(transform, x, out=transform if overwrite else None)
    # The derivative of the sigmoid is τ(1 − τ), and grad_x already has the factor 1 − τ.
    grad_gate.mul_(gate).mul_(grad_x)
    grad_weight, grad_bias = grad_parameters
    for grad_linear, w, grad_w, grad_b in zip(
        (grad_gate, grad_transform),
        weight.chunk(2),
        grad_weight.chunk(2),
        grad_bias.chunk(2),
        strict=True,
    ):
        grad_x.addmm_(grad_linear, w)
        grad_w.addmm_(grad_linear.t(), x)
        grad_b.add_(grad_linear.sum(dim=0))
    return grad_x


class _Highway(torch.autograd.Function):
    """``plain_highway`` of x (N, d), with half as many passes over memory in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, gate, transform = highway_forward(x, weight, bias)
        ctx.save_for_backward(x, gate, transform, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:
        x, gate, transform, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is needed
            out = plain_highway(x, weight, bias)
            return torch.autograd.grad(out, (x, weight, bias), grad_out, create_graph=True)
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        grad_x = highway_backward(grad_out, x, gate, transform, weight, (grad_weight, grad_bias))
        return grad_x, grad_weight, grad_bias


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``plain_highway`` of x (…, d) with a faster backward pass."""
    return _Highway.apply(x.flatten(0, -2), weight, bias).view_as(x)
