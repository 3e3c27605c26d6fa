"""Adversarial perturbations of word embeddings: where they begin, their ascent, how they enter.

δ (B, T, C) is added to what the encoder's ``embed_tokens`` returns, in the unit of the embedding
matrix. Norms are those of a whole sentence; padding is never perturbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from fairseq_stochattn.errors import UsageError

# Only the direction of the gradient is used, so this changes nothing but keeps small ones above the
# smallest number of fp16; it is the loss scale that fairseq begins with.
ASCENT_SCALE = 128.0

Start = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def norms(x: Tensor, order: float) -> Tensor:
    """(B, T, C) → (B, 1, 1): of order 2 or inf, over all words of a sentence."""
    return torch.linalg.vector_norm(x, order, dim=(1, 2), keepdim=True)


def uniform_start(like: Tensor, real: Tensor, random: torch.Generator, magnitude: float) -> Tensor:
    """U(−ε, ε)/√(n·C) for a sentence of n words: FreeLB's δ_0; ‖δ_0‖ ≤ ε."""
    cells = real.sum(dim=1).clamp(min=1) * like.size(-1)  # (B,)
    noise = torch.empty_like(like).uniform_(-magnitude, magnitude, generator=random)
    return noise * real[:, :, None] / cells.sqrt()[:, None, None]


def normal_start(like: Tensor, real: Tensor, random: torch.Generator, deviation: float) -> Tensor:
    """N(0, σ²): SMART's."""
    return torch.empty_like(like).normal_(0.0, 1.0, generator=random) * real[:, :, None] * deviation


@dataclass(frozen=True)
class Ascent:
    """δ ← Π_{‖δ‖ ≤ radius}(δ + lr · g/‖g‖), in the norm of ``order``, 2 or inf."""

    lr: float
    radius: float  # 0: no bound
    order: float

    def project(self, delta: Tensor) -> Tensor:
        if self.radius == 0:
            return delta
        if self.order == math.inf:
            return delta.clamp(-self.radius, self.radius)
        return delta * (self.radius / norms(delta, self.order)).clamp(max=1.0)

    def __call__(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """A sentence whose gradient is zero, or has overflowed in fp16, stays where it is."""
        length = norms(gradient, self.order)
        usable = length.isfinite() & (length > 0)
        step = torch.where(usable, gradient / length, torch.zeros_like(gradient))
        return self.project(delta + self.lr * step)


class Perturbation:
    """δ of one batch: one for every forward that its loss takes, a multiple choice has several.

    The noise it begins with has a generator of its own, so that the passes over a batch can begin
    with one state of torch's and see the same dropout and the same samples of the attention.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        self.seed = int(torch.randint(2**62, ()))
        self.deltas: list[Tensor] = []  # (B, T, C) each

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within, one pass over the batch is perturbed."""
        forwards = count()

        def perturb(embedded: Tensor, real: Tensor) -> Tensor:
            number = next(forwards)
            if number == len(self.deltas):
                random = torch.Generator(embedded.device).manual_seed(self.seed + number)
                like = embedded.detach()
                like = like.to(torch.promote_types(like.dtype, torch.float32))
                self.deltas.append(self.start(like, real, random).requires_grad_())
            return embedded + self.deltas[number].to(embedded.dtype)

        with embedding_by(model, perturb):
            yield

    def ascend(self, objective: Tensor, ascent: Ascent) -> None:
        """One step of δ, and of nothing else, up the objective of the last pass."""
        loss = ASCENT_SCALE * objective.sum()
        gradients = torch.autograd.grad(loss, self.deltas, retain_graph=True)
        pairs = zip(self.deltas, gradients, strict=True)
        self.deltas = [ascent(d.detach(), g).requires_grad_() for d, g in pairs]

    def size(self, order: float) -> Tensor:
        """The mean norm of a sentence's δ."""
        return torch.cat([norms(delta.detach(), order) for delta in self.deltas]).mean()


@contextmanager
def embedding_by(model: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Within, ``change(embedded, real)`` replaces the embedding (B, T, C) of the model's input.

    ``real`` (B, T) is False at padding. A decoder may share the encoder's embedding, so a call of
    it counts only within the encoder's forward.
    """
    host = find_host(model)
    embed = host.embed_tokens
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
        host.register_forward_pre_hook(enter),
        host.register_forward_hook(leave),
        embed.register_forward_hook(replace),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_host(model: nn.Module) -> nn.Module:
    """The module that embeds the model's input: its encoder, or a language model's decoder."""
    for module in model.modules():
        if "embed_tokens" in dict(module.named_children()):
            return module
    raise UsageError("this model has no embedding of tokens that could be perturbed")
