"""BABN: Bayesian attention belief networks (Zhang et al. 2021), §3.

A decoder of gamma and an encoder of Weibull variables over the unnormalised attention weights S of
all layers of a stack. Upward, from Φ¹ alone, the hidden states h^L … h^1 (``upward.py``);
downward, in each layer, Weibull weights whose shape and scale see h^l and the layer's own logits.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.method import AttentionMethod, Place, register_method
from fairseq_stochattn.attention.prior import ContextualPrior
from fairseq_stochattn.attention.stack import AttentionStack, select_layers
from fairseq_stochattn.attention.upward import HeadMap, PositionMap, UpwardChain, UpwardStates
from fairseq_stochattn.distributions import (
    at_least_float,
    finite_log_softmax,
    weibull_noise,
    weibull_variation,
)
from fairseq_stochattn.errors import UsageError, require_not_negative, require_positive
from fairseq_stochattn.inference import weibull_attention

SCORES = ChoiceEnum(["normalized", "raw"])
LEAST_K = 0.03  # below, Γ(1+1/k) is beyond a float


@dataclass
class BeliefConfig(FairseqDataclass):
    babn_scores: SCORES = field(
        default="normalized",
        metadata={"help": "exp(Φ) in k and λ: normalized over the keys, or raw as in the paper"},
    )
    babn_rho: float = field(
        default=1.5, metadata={"help": "ρ, weight of the upward network in the shape k"}
    )
    babn_sigma: float = field(
        default=1e-6, metadata={"help": "σ, weight of the upward network in the scale λ"}
    )
    babn_beta: float = field(default=1.0, metadata={"help": "β, rate of the gamma prior"})
    babn_k_min: float = field(
        default=0.05, metadata={"help": f"lower bound of the shape k, at least {LEAST_K}"}
    )
    babn_prior_hidden: int = field(
        default=32, metadata={"help": "hidden units of the contextual prior"}
    )
    babn_upward: ChoiceEnum(["positions", "heads"]) = field(
        default="positions",
        metadata={"help": "what f1, f2, f3 mix: key positions (paper), or heads (any length)"},
    )
    babn_max_positions: int = field(
        default=128, metadata={"help": "key positions that f1, f2, f3 mix; identity beyond"}
    )
    babn_share_layers: bool = field(
        default=False, metadata={"help": "one f1, f2, f3 for all layers of a stack"}
    )


def log_scores(logits: Tensor, cells: Cells, normalized: bool) -> Tensor:
    """The logarithm of "exp(Φ)", in fp32 or better, finite in every cell."""
    logits = at_least_float(logits)
    if not normalized:
        return logits
    if cells.blocked is None:
        return logits.log_softmax(dim=-1)
    return finite_log_softmax(cells.mask(logits))


@register_method("babn")
class BeliefNetwork(AttentionMethod):
    """Bayesian attention belief network: Weibull weights linked along the layers, gamma prior.

    In one layer: k, λ from h and Φ; a sample (or the mean) of log S; the KL to the prior.
    """

    Config = BeliefConfig
    samples_at_test = True

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        self.config = checked(config)
        self.layer = place.layer
        self.normalized = str(config.babn_scores) == "normalized"
        self.prior = ContextualPrior(place.head_dim, config.babn_prior_hidden)
        self.maps = None  # f1 and f2; None where the stack has one pair for all layers
        if not config.babn_share_layers:
            self.maps = build_maps(config, upward_inputs(config), place.num_heads)

    @classmethod
    def build_shared(cls, config: Namespace, stack: AttentionStack) -> nn.Module:
        checked(config)
        layers = select_layers(config.attention_layers, stack.num_layers, stack.site)
        count = 1 if config.babn_share_layers else len(layers)
        f3 = [build_maps(config, 1, stack.num_heads) for _ in range(count)]
        maps = None
        if config.babn_share_layers:
            maps = build_maps(config, upward_inputs(config), stack.num_heads)
        return SharedUpward(UpwardChain(f3, layers), maps)

    @classmethod
    def is_plain_at_test(cls, config: Namespace) -> bool:
        """Without σ the mean of S is exp(Φ)."""
        return config.babn_sigma == 0

    @staticmethod
    def shared(stack: AttentionStack) -> SharedUpward:
        return stack.shared["babn"]

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        """Φ^l (B, H, T, S) → log S, or log E[S] at test time."""
        with torch.autocast(logits.device.type, enabled=False):
            return self._forward(logits, cells)

    def _forward(self, logits: Tensor, cells: Cells) -> Tensor:
        config, leaving = self.config, self.losses_wanted
        if not (self.stochastic or leaving or config.babn_sigma > 0):
            return logits  # log E[S] is Φ, but for what is added to all keys: plain attention
        scores = at_least_float(logits)
        if self.normalized:
            scores = cells.mask(scores)
        f1, *rest = self.upward(logits, cells).apply(
            self.maps or self.shared(cells.stack).maps, self.layer
        )
        log_s, kl, k = weibull_attention(
            scores,
            f1,
            rest[0] if rest else None,
            alpha=self.prior.once(cells) if leaving else None,
            noise=weibull_noise(scores) if self.stochastic else None,
            valid=cells.valid if leaving else None,
            rho=config.babn_rho,
            sigma=config.babn_sigma,
            k_min=config.babn_k_min,
            beta=config.babn_beta,
            normalize=self.normalized,
        )
        if leaving:
            count = cells.valid.sum() * logits.size(1)
            self.leave("kl", kl, weight=1.0, count=count)
            self.leave("noise", *measured_noise(k, cells.valid))
        return log_s

    def upward(self, logits: Tensor, cells: Cells) -> UpwardStates:
        """The chain, made by the first layer that runs and kept for the others.

        A decoder that attends one query at a time (LSTM) has one layer and a new chain a query.
        """
        state = cells.stack.state
        if "babn" not in state or len(self.shared(cells.stack).chain.layers) == 1:
            state["babn"] = self.shared(cells.stack).chain(at_least_float(logits), cells)
        return state["babn"]


class SharedUpward(nn.Module):
    """What a stack shares: the chain, and f1, f2 under ``--babn-share-layers``."""

    def __init__(self, chain: UpwardChain, maps: nn.Module | None) -> None:
        super().__init__()
        self.chain = chain
        self.maps = maps


def upward_inputs(config: Namespace) -> int:
    """f1 alone where σ = 0, else f1 and f2."""
    return 2 if config.babn_sigma > 0 else 1


def build_maps(config: Namespace, maps: int, num_heads: int) -> nn.Module:
    if str(config.babn_upward) == "heads":
        return HeadMap(maps, num_heads)
    return PositionMap(maps, config.babn_max_positions)


def measured_noise(k: Tensor, valid: Tensor) -> tuple[Tensor, None, bool, Tensor]:
    """Σ of the coefficient of variation of S over valid cells, and their number, to ``leave``.

    From one sentence in eight and one query in four: this is a gauge, and every Γ costs.
    """
    k, valid = k.detach()[::8, :, ::4], valid[::8, :, ::4]
    variation = weibull_variation(k).masked_fill(~valid, 0.0)
    return variation.sum(), None, False, valid.sum() * k.size(1)


def checked(config: Namespace) -> Namespace:
    """Refuse what the equations do not bear."""
    require_not_negative(config, "babn_rho", "babn_sigma")
    require_positive(config, "babn_beta", "babn_prior_hidden", "babn_max_positions")
    if config.babn_k_min < LEAST_K:
        raise UsageError(f"--babn-k-min must be at least {LEAST_K}")
    return config
