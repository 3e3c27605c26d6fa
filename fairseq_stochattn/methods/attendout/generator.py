"""The generator G of AttendOut (Wu et al. 2021, §4.1): a small self-attention network.

It has as many layers as the stack whose pairs it drops, one head, one set of parameters for all
layers, no feed-forward and its own embedding. Each layer exports its scores s; a (query, key) pair
is dropped with probability p = σ(s). If the actions are those of layers, all pairs of a layer are
dropped with one probability σ(s̄ + c·ε): s̄ is the mean score of a sentence, and ε ~ N(0, 1), the
action of this layer, stays the same for a whole round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...core.errors import InputError
from ...core.stack import Vocabulary

if TYPE_CHECKING:
    from .meter import GroupProbe


@dataclass(frozen=True)
class Actions:
    """What the generator drops in one batch. Shapes: n layers, B sentences, T tokens."""

    drop: Tensor  # (n, B, T, T), True at dropped pairs, which are always valid pairs
    mean: Tensor  # (n,): the sum of p over the valid pairs
    count: Tensor  # (): number of valid pairs of one layer


def sample_drops(scores: Tensor) -> Tensor:
    """Bernoulli(σ(s)) by Gumbel noise, True for drop.

    "drop" has the score s and "keep" the score 0, each with its own noise; the higher one wins. The
    difference of two Gumbel variables has the distribution of the logit of a uniform variable.
    """
    return scores + torch.rand_like(scores).logit() > 0


def grad_log_probability(p: Tensor, drop: Tensor, valid: Tensor) -> Tensor:
    """The gradient of Σ_k 1/(n·l²) Σ_ij log P(d^ij) with respect to the scores, (n, B, T, T).

    d log P(d)/ds = d − p. The sum over k is over sentences. l² is the number of valid pairs of a
    sentence (``valid`` is (B, T, T)), so that padding does not count.
    """
    units = p.size(0) * valid.sum(dim=(1, 2)).clamp(min=1)  # (B,)
    return (drop.to(p.dtype) - p) * valid / units[:, None, None]


EXPLORATION = 0.5  # c, the standard deviation of a layer's action, as a logit


def grad_log_density(noise: Tensor, valid: Tensor) -> Tensor:
    """The gradient of Σ_k 1/n Σ_layers log N(a; s̄, c²) with respect to the scores, (n, B, T, T).

    a = s̄ + c·ε is the action of a layer, so d log N/ds̄ = ε/c; ``noise`` is ε, (n,), and ``valid``
    is (B, T, T).
    """
    units = noise.size(0) * valid.sum(dim=(1, 2)).clamp(min=1)  # (B,)
    return noise.view(-1, 1, 1, 1) / EXPLORATION * (valid / units[:, None, None])


def sinusoidal_positions(tokens: Tensor, padding_idx: int, dim: int) -> Tensor:
    """(B, T) → (B, T, dim): sinusoidal embeddings of the positions of non-padding tokens.

    Positions start at padding_idx + 1, and padding has the vector 0, as in fairseq's
    ``SinusoidalPositionalEmbedding``.
    """
    real = tokens.ne(padding_idx).int()
    positions = (real.cumsum(dim=1) * real + padding_idx).to(torch.float32)  # (B, T)
    half = dim // 2
    rate = torch.arange(half, dtype=torch.float32, device=tokens.device)
    angles = positions[..., None] * torch.exp(rate * (-math.log(10000) / (half - 1)))
    embedded = torch.cat([angles.sin(), angles.cos()], dim=-1)
    if dim % 2:
        embedded = torch.cat([embedded, embedded.new_zeros((*tokens.shape, 1))], dim=-1)
    return embedded * real[..., None]


class DropoutGenerator(nn.Module):
    """Scores for the (query, key) pairs of a stack's layers; learns by policy gradient alone.

    Its parameters do not require a gradient, so that the model's optimizer and the gradient
    reduction of distributed training never see them. While ``learning``, every forward pass adds
    the gradient of its actions' log-probability to ``accumulated``, a flat vector. The parameters
    do not change between two rounds of the training loop, so this equals what the paper computes
    at the end of a round from the batches it has cached.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        layers: Sequence[int],
        dim: int,
        drop: float,
        causal: bool,
        by_layer: bool = False,
        copied_width: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = list(layers)  # those with dropout
        self.causal = causal
        self.padding_idx = vocabulary.padding_idx
        self.offset = math.log(drop / (1 - drop))  # added to the scores: p starts near ``drop``
        self.by_layer = by_layer
        self.noise = torch.zeros(len(self.layers))  # ε of this round; set by the training loop
        self.drops = True  # False: an ablation without dropout
        self.copies_embedding = copied_width is not None
        if copied_width is None:
            self.embed_tokens = nn.Embedding(vocabulary.size, dim, self.padding_idx)
        else:
            # A buffer: the generator does not learn the copied embedding.
            self.register_buffer("copied", torch.zeros(vocabulary.size, copied_width))
            self.project = nn.Linear(copied_width, dim, bias=False)
        self.layer_norm = nn.LayerNorm(dim)
        self.in_proj = nn.Linear(dim, 3 * dim)  # W_Q, W_K, W_V
        self.requires_grad_(False)
        self.in_training_loop = False
        self.learning = False
        self.probe: GroupProbe | None = None  # set by the meter while it measures
        self.accumulated: Tensor | None = None
        self.sentences = 0

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → the scores of all layers with dropout, (n, B, T, T)."""
        unseen = ~self.valid_pairs(tokens)  # (B, T, T)
        unseen = unseen & ~unseen.all(dim=-1, keepdim=True)
        embedded = self.embed(tokens)
        positions = sinusoidal_positions(tokens, self.padding_idx, embedded.size(-1))
        h = self.layer_norm(embedded + positions.to(embedded.dtype))  # (B, T, d)
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

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, d)."""
        if not self.copies_embedding:
            return self.embed_tokens(tokens)
        return self.project(nn.functional.embedding(tokens, self.copied))

    def copy_embedding(self, weight: Tensor) -> None:
        """Take a copy of the model's word embedding, scaled to a mean square of 1."""
        if weight.shape != self.copied.shape:
            raise InputError(
                "--attendout-embedding model: the model's embedding has the shape "
                f"{tuple(weight.shape)}, not {tuple(self.copied.shape)}; use own"
            )
        scale = weight.detach().float().square().mean().sqrt().clamp(min=1e-6)
        self.copied.copy_(weight.detach() / scale)

    def valid_pairs(self, tokens: Tensor) -> Tensor:
        """(B, T, T): the valid pairs, the same as in the attention of the stack."""
        real = tokens.ne(self.padding_idx)
        valid = real[:, None, :] & real[:, :, None]
        return valid.tril() if self.causal else valid

    def act(self, tokens: Tensor) -> Actions:
        """Sample the pairs to drop in a batch; while learning, accumulate the gradient."""
        if self.probe is not None:
            return self.probe.act(self, tokens)
        leaves = {name: p.detach() for name, p in self.named_parameters()}
        valid = self.valid_pairs(tokens)
        with (
            torch.autocast(tokens.device.type, enabled=False),
            torch.set_grad_enabled(self.learning),
        ):
            for leaf in leaves.values():
                leaf.requires_grad_(self.learning)
            scores = functional_call(self, leaves, (tokens,))
            logits = self.of_layers(scores.detach(), valid) if self.by_layer else scores.detach()
            p = logits.sigmoid() * self.drops
            drop = sample_drops(logits) & valid & self.drops
            if self.learning:
                if self.by_layer:
                    grad_scores = grad_log_density(self.noise.to(p.device), valid)
                else:
                    grad_scores = grad_log_probability(p, drop, valid)
                self._accumulate(scores, list(leaves.values()), grad_scores)
        return Actions(drop, (p * valid).sum(dim=(1, 2, 3)), valid.sum())

    def of_layers(self, scores: Tensor, valid: Tensor) -> Tensor:
        """The logit s̄ + c·ε of the share that is dropped in a layer, for all its pairs."""
        mean = (scores * valid).sum(dim=(2, 3)) / valid.sum(dim=(1, 2)).clamp(min=1)  # (n, B)
        action = mean + EXPLORATION * self.noise.to(mean.device)[:, None]
        return action[:, :, None, None].expand_as(scores)

    def _accumulate(self, scores: Tensor, leaves: list[Tensor], grad_scores: Tensor) -> None:
        grads = torch.autograd.grad(scores, leaves, grad_scores)
        flat = torch.cat([grad.flatten() for grad in grads])
        self.accumulated = flat if self.accumulated is None else self.accumulated.add_(flat)
        self.sentences += scores.size(1)

    def take_gradients(self) -> tuple[Tensor, int]:
        """The sum of the gradients since the last call, and the number of sentences in it."""
        accumulated, sentences = self.accumulated, self.sentences
        self.accumulated, self.sentences = None, 0
        if accumulated is None:
            some = next(self.parameters())
            accumulated = some.new_zeros(sum(p.numel() for p in self.parameters()))
        return accumulated, sentences

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        """Move like any module, but never to a lower precision.

        ``--fp16`` converts the model to half precision, which would round the generator's small
        updates to 0, because the optimizer keeps no fp32 copy of these parameters.
        """

        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrower = moved.element_size() < tensor.element_size()
            return tensor.to(moved.device) if narrower else moved

        return super()._apply(keep_precision, *args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Older checkpoints contain a placeholder tensor of fairseq's positional embedding.
        state_dict.pop(f"{prefix}embed_positions._float_tensor", None)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
