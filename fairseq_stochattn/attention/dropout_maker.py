"""G-Net of AttendOut (Wu et al. 2021, §4.1): a small self-attention that says which cells to drop.

As many layers as the stack it serves, one head, one group of parameters for all of them, no
feed-forward, an embedding of its own. A layer exports its scores s; a cell is dropped with the
probability p = σ(s).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn
from torch.func import functional_call


@dataclass(frozen=True)
class Actions:
    """What G-Net decided for one batch. Shapes: n layers, B sentences, T tokens."""

    drop: Tensor  # (n, B, T, T), True where a cell is dropped; never where it is not valid
    mean: Tensor  # (n,): the sum of p over the valid cells
    count: Tensor  # (): how many cells these are in a layer


def sample_drops(scores: Tensor) -> Tensor:
    """Bernoulli(σ(s)) by Gumbel noise: "drop" has the score s, "keep" has 0, each with noise of its
    own, and the higher wins. The difference of two Gumbel variables is the logit of a uniform one.
    """
    return scores + torch.rand_like(scores).logit() > 0


def log_probability_slope(p: Tensor, drop: Tensor, valid: Tensor) -> Tensor:
    """(n, B, T, T): the gradient by the scores of Σ_k 1/(n·l²) Σ_ij log P(d^ij), k the sentences.

    d log P(d)/ds = d − p; l² is the number of a sentence's valid cells (B, T, T), so that padding
    has no say.
    """
    units = p.size(0) * valid.sum(dim=(1, 2)).clamp(min=1)  # (B,)
    return (drop.to(p.dtype) - p) * valid / units[:, None, None]


class DropoutMaker(nn.Module):
    """Scores for the cells of a stack's layers; learns by policy gradient alone.

    Its parameters ask for no gradient: fairseq's optimizer and the reducers of distributed training
    never see them. While ``learning``, every forward adds the slope of its actions' log-probability
    to ``recorded``, a flat vector. θ_G stands still between two turns of the game, so this equals
    what the paper computes at the end of a turn from the batches it has cached.
    """

    def __init__(
        self, dictionary: Dictionary, layers: Sequence[int], dim: int, drop: float, causal: bool
    ) -> None:
        super().__init__()
        self.layers = list(layers)  # those that are dropped in
        self.causal = causal
        self.padding_idx = dictionary.pad()
        self.offset = math.log(drop / (1 - drop))  # of the scores: p starts around ``drop``
        self.embed_tokens = nn.Embedding(len(dictionary), dim, self.padding_idx)
        self.embed_positions = SinusoidalPositionalEmbedding(dim, self.padding_idx)
        self.layer_norm = nn.LayerNorm(dim)
        self.in_proj = nn.Linear(dim, 3 * dim)  # W_Q, W_K, W_V
        self.requires_grad_(False)
        self.in_game = False
        self.learning = False
        self.recorded: Tensor | None = None
        self.sentences = 0

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → the scores of all chosen layers, (n, B, T, T)."""
        unseen = ~self.visible(tokens)  # (B, T, T)
        unseen = unseen & ~unseen.all(dim=-1, keepdim=True)
        h = self.layer_norm(self.embed_tokens(tokens) + self.embed_positions(tokens))  # (B, T, d)
        exported = []
        for layer in range(self.layers[-1] + 1):
            q, k, v = self.in_proj(h).chunk(3, dim=-1)
            scores = q @ k.transpose(1, 2) / q.size(-1) ** 0.5  # (B, T, T)
            if layer in self.layers:
                exported.append(scores + self.offset)
            if layer < self.layers[-1]:
                weights = scores.masked_fill(unseen, float("-inf")).softmax(dim=-1)
                h = self.layer_norm(h + weights @ v)
        return torch.stack(exported)

    def visible(self, tokens: Tensor) -> Tensor:
        """(B, T, T): the valid cells, as the stack has them."""
        real = tokens.ne(self.padding_idx)
        valid = real[:, None, :] & real[:, :, None]
        return valid.tril() if self.causal else valid

    def act(self, tokens: Tensor) -> Actions:
        """Draw what to drop in a batch, and record the slope of it while learning."""
        leaves = {name: p.detach() for name, p in self.named_parameters()}
        valid = self.visible(tokens)
        with (
            torch.autocast(tokens.device.type, enabled=False),
            torch.set_grad_enabled(self.learning),
        ):
            for leaf in leaves.values():
                leaf.requires_grad_(self.learning)
            scores = functional_call(self, leaves, (tokens,))
            p = scores.detach().sigmoid()
            drop = sample_drops(scores.detach()) & valid
            if self.learning:
                self._record(scores, list(leaves.values()), log_probability_slope(p, drop, valid))
        return Actions(drop, (p * valid).sum(dim=(1, 2, 3)), valid.sum())

    def _record(self, scores: Tensor, leaves: list[Tensor], slope: Tensor) -> None:
        gradients = torch.autograd.grad(scores, leaves, slope)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.recorded = flat if self.recorded is None else self.recorded.add_(flat)
        self.sentences += scores.size(1)

    def take_record(self) -> tuple[Tensor, int]:
        """The sum of the slopes since the last call, and of how many sentences."""
        recorded, sentences = self.recorded, self.sentences
        self.recorded, self.sentences = None, 0
        if recorded is None:
            some = next(self.parameters())
            recorded = some.new_zeros(sum(p.numel() for p in self.parameters()))
        return recorded, sentences

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        """Moved like any module, but never below its precision: ``--fp16`` makes the model half,
        and a policy's steps are too small for that. It has no fp32 copy in fairseq's optimizer."""

        def at_full_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrower = moved.element_size() < tensor.element_size()
            return tensor.to(moved.device) if narrower else moved

        return super()._apply(at_full_precision, *args, **kwargs)
