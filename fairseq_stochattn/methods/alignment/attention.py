"""Alignment attention (Zhang et al. 2021): a loss makes the keys and queries of a head similar.

The attention itself is unchanged. p_Q and p_K are the empirical distributions of the queries and
the keys of a sentence in one head (§2.2). The loss is one of three distances between them (§2.3):
a discriminator (gan, Eq. 2), entropic optimal transport (ot, Eq. 3) or conditional transport in
both directions (ct, Eq. 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.context import AttentionContext
from ...core.errors import require_not_negative, require_positive
from ...core.method import AttentionMethod, LayerInfo, register_method
from ...core.schedule import ramp
from ...core.settings import Settings, setting
from ...core.stack import AttentionStack
from .clouds import clouds_of, standardized
from .distances import build_matcher
from .meter import cloud_meters
from .tokens import TokenSet
from .transport import squared_mmd

# Each layer adds its gradient penalty every fourth update, multiplied by four. On average this is
# the same penalty, but it takes a quarter of the time (lazy regularisation, Karras et al. 2020).
PENALTY_PERIOD = 4


@dataclass(frozen=True)
class Alignment(Settings):
    """Settings of alignment attention."""

    distance: Literal["gan", "ot", "ct"] = setting(
        "ct",
        "align keys and queries by a discriminator (gan), optimal transport (ot) or conditional "
        "transport (ct); can be combined with any --attention; the archs *_alignment use ct",
        flag="alignment",
        flag_default="none",
    )
    recipe: Literal["stable", "paper"] = setting(
        "stable",
        "stable: the settings below; paper: the plain forms of the paper (loss of the raw queries "
        "and keys, gradient into all layers, navigator without temperature, discriminator not "
        "conditioned on the head, without penalty and with the learning rate of the model)",
    )
    weight: float = setting(0.01, "full weight of the loss")
    start: int = setting(0, "update at which the loss starts")
    warmup: int = setting(0, "updates over which the weight grows from 0 to its full value")
    through: Literal["model", "projections"] = setting(
        "model",
        "what the gradient of the loss changes: W_Q and W_K of the layer (projections), or also "
        "the layers below (model)",
    )
    scale_free: Literal["no", "yes"] = setting(
        "no",
        "compare queries and keys after moving and scaling them together, so that shrinking all "
        "of them does not lower the loss",
    )
    heads: Literal["mean", "sum"] = setting(
        "mean", "the loss of a layer is the mean over its heads, or the sum"
    )
    hidden: int = setting(32, "hidden units of discriminator, critic and navigator")
    share_layers: bool = setting(
        False, "one discriminator (critic, navigator) per site instead of one per layer"
    )
    gan_blind: bool = setting(
        False,
        "gan: do not condition the discriminator on the head (as in the paper; keys and queries "
        "are then matched over all heads together, not in each head)",
    )
    gan_penalty: float = setting(
        0.1, "gan: weight γ of the gradient penalty on the discriminator (0 in the paper)"
    )
    gan_rate: float = setting(
        10.0, "gan: learning rate of the discriminator, as a multiple of the model's (paper: 1)"
    )
    ct_temperature: float = setting(
        1.0, "ct: temperature of the transport probabilities; below 1, they are sharper"
    )
    cost: Literal["cosine", "euclidean"] = setting(
        "cosine",
        "ot: cost of moving a query to a key: 1 − cosine, or the squared distance divided by its "
        "mean (paper recipe: not divided)",
    )
    ot_epsilon: float = setting(0.01, "ot: weight ε of the entropy of the transport plan")
    ot_iterations: int = setting(
        50, "ot: maximum number of Sinkhorn iterations, which stop early at convergence"
    )
    log_mmd: bool = setting(
        False,
        "log the squared MMD of keys and queries with the paper's kernel (σ = 1), averaged over "
        "heads and layers, as mmd_sigma1",
    )
    log_mmd_layers: bool = setting(
        False, "also log the squared MMD of every layer, as mmd_sigma1_<site>_<layer>"
    )

    def check(self) -> None:
        require_not_negative(self, "weight", "start", "warmup", "gan_penalty")
        require_positive(self, "hidden", "gan_rate", "ot_epsilon", "ot_iterations")
        require_positive(self, "ct_temperature")

    def resolved(self) -> Alignment:
        """The settings that the recipe implies."""
        return replace(self, **PAPER) if self.recipe == "paper" else self


# The paper's plain forms of the three distances.
PAPER = {
    "through": "model",
    "scale_free": "no",
    "ct_temperature": 1.0,
    "gan_blind": True,
    "gan_penalty": 0.0,
    "gan_rate": 1.0,
}


@register_method("alignment", settings=Alignment)
class AlignmentAttention(AttentionMethod):
    """Plain attention plus a loss between the distributions of keys and queries."""

    settings: Alignment
    # Self-attention only, in which each token has a key and a query.
    sites = ("encoder", "decoder")
    plain_at_test = True
    passive = True
    switch = "distance"
    arch_defaults = {"alignment": "ct"}

    def __init__(self, settings: Alignment, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.weight = ramp(settings.weight, settings.start, settings.warmup)
        self.layer = info.layer
        self.matcher = None  # None if all layers share the matcher of the stack
        if not settings.share_layers:
            self.matcher = build_matcher(settings.resolved(), info.num_heads, info.head_dim)
        self.mmd_names = ["mmd_sigma1"] if settings.log_mmd else []
        if settings.log_mmd_layers:
            self.mmd_names.append(f"mmd_sigma1_{info.site}_{info.layer}")

    @classmethod
    def build_shared(cls, settings: Alignment, stack: AttentionStack) -> nn.Module | None:
        """The matcher for all layers if ``share_layers`` is set, else None."""
        if not settings.share_layers:
            return None
        return build_matcher(settings.resolved(), stack.num_heads, stack.head_dim)

    def observe(self, context: AttentionContext) -> None:
        """Store the losses of this layer, computed from its queries and keys."""
        if self.losses_wanted:
            with torch.autocast(context.q.device.type, enabled=False):
                self._add_losses(context)

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """The logits (B, H, T, S), unchanged."""
        return logits

    def _add_losses(self, context: AttentionContext) -> None:
        context, settings = context.clean_half(), self.settings.resolved()
        raw_q, raw_k = q, k = clouds_of(context, settings.through)
        queries, keys = token_sets(context)
        present = (queries.present & keys.present).unsqueeze(1)  # (B, 1)
        count = present.sum() * (q.size(1) if settings.heads == "mean" else 1)
        if settings.scale_free == "yes":
            q, k = standardized(q, k, queries, keys)
        matcher = self.matcher or context.stack.shared[self.name]
        self.add_loss("align", matcher.total(q, k, queries, keys), self.weight, "mean", count)
        if self.training and matcher.has_penalty:
            due = (self.num_updates + self.layer) % PENALTY_PERIOD == 0
            penalty = matcher.penalty(q, k, queries, keys) if due else q.new_zeros(())
            one = torch.ones((), device=q.device)  # a count of 1 per layer: the mean over layers
            self.add_loss("align_penalty", PENALTY_PERIOD * penalty, self.weight, "mean", one)
        if self.mmd_names:
            pairs = (queries.several & keys.several).unsqueeze(1)
            mmd = squared_mmd(raw_q, raw_k, queries.mass, keys.mass) * pairs
            for name in self.mmd_names:
                self.add_measure(name, mmd.sum(), pairs.sum() * q.size(1))
        if self.meters_wanted:
            meters, count = cloud_meters(raw_q, raw_k, context.query_padding)
            for name, value in meters._asdict().items():
                self.add_measure(name, value, count)


def token_sets(context: AttentionContext) -> tuple[TokenSet, TokenSet]:
    """The non-padding tokens of queries and keys, computed once per stack and forward pass."""
    state = context.stack.state
    if "alignment" not in state:
        # Without padding, fairseq passes None for the keys but still a mask for the queries.
        padding = context.query_padding if context.key_padding is not None else None
        state["alignment"] = TokenSet(context.q, padding), TokenSet(context.k, context.key_padding)
    return state["alignment"]
