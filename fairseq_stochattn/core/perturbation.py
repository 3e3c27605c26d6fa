"""Adversarial perturbations of word embeddings: initial value, gradient ascent, application.

A perturbation δ (B, T, C) is added to the output of the encoder's ``embed_tokens``, before any
scaling. Norms are taken over a whole sentence. Padding is never perturbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from .errors import InputError

# The objective is multiplied by this factor before its gradient is computed, so that small fp16
# gradients do not underflow. Only the direction of the gradient is used, so the factor has no other
# effect. 128 is fairseq's initial loss scale.
ASCENT_SCALE = 128.0

# start(like (B, T, C), real (B, T), generator) → initial δ (B, T, C); ``real`` is False at padding.
Start = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def norms(x: Tensor, order: float) -> Tensor:
    """The norm of order 2 or inf of each sentence, (B, T, C) → (B, 1, 1)."""
    return torch.linalg.vector_norm(x, order, dim=(1, 2), keepdim=True)


@dataclass(frozen=True)
class Ascent:
    """One step of projected gradient ascent: δ ← project(δ + lr · g/‖g‖).

    g is the gradient of the objective with respect to δ. The projection makes ‖δ‖ at most
    ``radius``.
    """

    lr: float
    radius: float  # 0 means no bound
    order: float  # order of the norm: 2 or inf

    def project(self, delta: Tensor) -> Tensor:
        """Project δ (B, T, C), sentence by sentence, onto the ball of radius ``radius``."""
        if self.radius == 0:
            return delta
        if self.order == math.inf:
            return delta.clamp(-self.radius, self.radius)
        return delta * (self.radius / norms(delta, self.order)).clamp(max=1.0)

    def __call__(self, delta: Tensor, grad_delta: Tensor) -> Tensor:
        """Return the next δ (B, T, C). A sentence with a zero or non-finite gradient keeps δ."""
        length = norms(grad_delta, self.order)
        usable = length.isfinite() & (length > 0)
        step = torch.where(usable, grad_delta / length, torch.zeros_like(grad_delta))
        return self.project(delta + self.lr * step)


@contextmanager
def replayed_randomness() -> Iterator[Callable[[], None]]:
    """Yield a function that restores the random state that torch had at the start of the block."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def replay() -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)

    yield replay


class Perturbation:
    """The perturbation of one batch, with one δ per forward pass that the loss of the batch needs.

    Most losses need one forward pass; a multiple-choice loss needs one per option. The initial
    noise has its own random generator, so that repeated passes over a batch can start from the same
    state of torch's generator and use the same dropout masks and attention samples.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        self.seed = int(torch.randint(2**62, ()))
        self.deltas: list[Tensor] = []  # (B, T, C) each

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Perturb the embeddings within the block, which must compute one loss of the batch."""
        forward_passes = count()

        def perturb(embedded: Tensor, real: Tensor) -> Tensor:
            index = next(forward_passes)
            if index == len(self.deltas):
                generator = torch.Generator(embedded.device).manual_seed(self.seed + index)
                like = embedded.detach()
                like = like.to(torch.promote_types(like.dtype, torch.float32))
                self.deltas.append(self.start(like, real, generator).requires_grad_())
            return embedded + self.deltas[index].to(embedded.dtype)

        with changed_embeddings(model, perturb):
            yield

    def ascend(self, objective: Tensor, ascent: Ascent) -> None:
        """Move every δ one step so that the objective of the last pass increases.

        No other tensor receives a gradient.
        """
        loss = ASCENT_SCALE * objective.sum()
        # LayerDrop may skip all cross-attention: the loss then does not depend on δ.
        grad_deltas = torch.autograd.grad(
            loss, self.deltas, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        pairs = zip(self.deltas, grad_deltas, strict=True)
        self.deltas = [ascent(delta.detach(), grad).requires_grad_() for delta, grad in pairs]

    def size(self, order: float) -> Tensor:
        """The norm of δ, averaged over all sentences, a scalar."""
        return torch.cat([norms(delta.detach(), order) for delta in self.deltas]).mean()


@contextmanager
def changed_embeddings(
    model: nn.Module, change: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """Within the block, replace the embedded input (B, T, C) by ``change(embedded, real)``.

    ``real`` (B, T) is False at padding. A decoder may share the encoder's embedding, so only calls
    of the embedding within the encoder's forward pass are changed.
    """
    encoder = find_embedding_module(model)
    embed = encoder.embed_tokens
    inside = False

    def enter(*_: object) -> None:
        nonlocal inside
        inside = True

    def leave(*_: object) -> None:
        nonlocal inside
        inside = False

    def replace(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        return change(output, inputs[0].ne(embed.padding_idx)) if inside else None

    handles = (
        encoder.register_forward_pre_hook(enter),
        encoder.register_forward_hook(leave),
        embed.register_forward_hook(replace),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_embedding_module(model: nn.Module) -> nn.Module:
    """The module that embeds the model's input: its encoder, or the decoder of a language model."""
    for module in model.modules():
        if "embed_tokens" in dict(module.named_children()):
            return module
    raise InputError(
        "this model has no embedding of tokens that can be perturbed: "
        "none of its modules has a child embed_tokens"
    )
