"""BABN: Bayesian attention belief networks (Zhang et al. 2021, §3).

The unnormalised attention weights S in all L layers of a stack are Weibull variables with a gamma
prior. The upward network (``upward.py``) computes hidden states h^L … h^1 from the logits Φ¹ of the
first layer alone. In layer l, the shape k of the Weibull weights depends on f1(h^l) and their scale
λ on f2(h^l), where f1 and f2 are linear maps. Both also depend on the layer's own logits Φ^l
(``inference.py``). f3 is the linear map from h^{l+1} to h^l.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.context import AttentionContext
from ...core.cut_noise import sampled_log_mean
from ...core.distributions import (
    at_least_float,
    finite_log_softmax,
    weibull_noise,
)
from ...core.errors import SettingError, require_not_negative, require_positive
from ...core.method import AttentionMethod, LayerInfo, register_method
from ...core.settings import setting
from ...core.softmax import log_softmax
from ...core.stack import AttentionStack
from .inference import weibull_attention
from .meter import measure_noise
from .prior import NOISE_HELP, BayesianSettings, ContextualPrior, gamma_shape
from .upward import INIT_STD, HeadMap, PositionMap, UpwardChain, UpwardStates

MIN_K = 0.03  # for smaller k, Γ(1+1/k) overflows fp32


@dataclass(frozen=True)
class BABN(BayesianSettings):
    """Settings of Bayesian attention belief networks."""

    scores: Literal["normalized", "raw"] = setting(
        "normalized",
        "exp(logits) in the shape k and the scale λ: normalized over the keys, or raw (paper)",
    )
    rho: float = setting(1.5, "ρ, weight of the upward network in the shape k")
    sigma: float = setting(1e-6, "σ, weight of the upward network in the scale λ")
    noise: Literal["full", "cut", "paper"] = setting("full", NOISE_HELP)
    k_min: float = setting(0.05, f"lower bound of the shape k, at least {MIN_K}")
    start: Literal["even", "identity"] = setting(
        "even",
        "initial value of f1, the map from the upward network to the shape k: near zero (even), so "
        "that all layers start equally noisy (k near 1.1); or the identity, so that the noise "
        "grows from the first layer to the last",
    )
    upward: Literal["positions", "heads"] = setting(
        "positions",
        "axis along which the upward network mixes: key positions (as in the paper), or heads (for "
        "any number of keys)",
    )
    max_positions: int = setting(
        128, "with upward positions: number of keys that are mixed; later keys stay unchanged"
    )
    share_layers: bool = setting(
        False, "the same maps f1, f2 and f3 in all layers of a site, instead of one set per layer"
    )
    compile: bool = setting(
        False,
        "compile the formulas of babn by torch.compile (needs a C++ compiler, or Triton on a GPU; "
        "the first update takes up to a minute longer)",
        flag="compile_attention",
    )

    def check(self) -> None:
        super().check()
        require_not_negative(self, "rho", "sigma")
        require_positive(self, "max_positions")
        if self.k_min < MIN_K:
            raise SettingError(self, "k_min", f"must be at least {MIN_K}")


def log_scores(logits: Tensor, context: AttentionContext, normalized: bool) -> Tensor:
    """The logits Φ, or log softmax(Φ) over the keys if ``normalized``, (B, H, T, S).

    The result is in fp32 or fp64, and is finite at blocked pairs too.
    """
    logits = at_least_float(logits)
    if not normalized:
        return logits
    if context.blocked is None:
        return log_softmax(logits)
    return finite_log_softmax(context.mask(logits))


@register_method("babn", settings=BABN)
class BABNAttention(AttentionMethod):
    """One layer of a Bayesian attention belief network.

    It computes k and λ from h and Φ, returns a sample of log S (or log E[S] at test time), and
    stores the KL divergence between posterior and prior as a loss.
    """

    settings: BABN
    samples_at_test = True

    def __init__(self, settings: BABN, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.layer = info.layer
        self.normalized = settings.scores == "normalized"
        self.prior = ContextualPrior(info.head_dim, settings.prior_hidden)
        self.maps = None  # f1 and f2; None if all layers share the maps of the stack
        if not settings.share_layers:
            self.maps = build_f1_f2(settings, info.num_heads)

    @classmethod
    def build_shared(cls, settings: BABN, stack: AttentionStack) -> nn.Module:
        """The maps f3 of all layers and, with ``share_layers``, the common maps f1 and f2."""
        layers = stack.layers
        count = 1 if settings.share_layers else len(layers)
        f3 = [build_maps(settings, 1, stack.num_heads) for _ in range(count)]
        maps = None
        if settings.share_layers:
            maps = build_f1_f2(settings, stack.num_heads)
        return SharedUpward(UpwardChain(f3, layers), maps)

    @classmethod
    def is_plain_at_test(cls, settings: BABN) -> bool:
        """True if σ = 0 and the mean is that of full noise: E[S] is then proportional to exp(Φ)."""
        return settings.sigma == 0 and settings.noise != "cut"

    @staticmethod
    def shared(stack: AttentionStack) -> SharedUpward:
        """The parameters that ``build_shared`` returned for this stack."""
        return stack.shared["babn"]

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """Φ^l (B, H, T, S) → log S in training, log E[S] at test time, (B, H, T, S)."""
        with torch.autocast(logits.device.type, enabled=False):
            return self._forward(logits, context)

    def _forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        settings, losses_wanted = self.settings, self.losses_wanted
        if not (self.stochastic or losses_wanted) and self.is_plain_at_test(settings):
            return logits  # log E[S] is Φ plus a constant per query, as in plain attention
        scores = at_least_float(logits)
        if self.normalized:
            scores = context.mask(scores)
        f1, *rest = self.upward(logits, context).apply(
            self.maps or self.shared(context.stack).maps, self.layer, logits.size(1)
        )
        log_s, kl, k = weibull_attention(
            scores,
            f1,
            rest[0] if rest else None,
            alpha=self.alpha(context) if losses_wanted else None,
            noise=weibull_noise(scores, *settings.noise_bounds) if self.stochastic else None,
            valid=context.valid if losses_wanted else None,
            rho=settings.rho,
            sigma=settings.sigma,
            k_min=settings.k_min,
            beta=settings.rate,
            normalize=self.normalized,
            compile=settings.compile,
        )
        if losses_wanted:
            count = context.num_valid * logits.size(1)
            self.add_loss("kl", kl, settings.kl_schedule, settings.kl_loss_reduction, count)
            self.add_measure("noise", *measure_noise(k, context.valid, settings.noise_bounds))
        if settings.noise == "cut" and not self.stochastic:
            # Replace the mean of a Weibull variable by the mean of samples with cut noise.
            log_s = log_s + sampled_log_mean(k, settings.noise_bounds) - torch.lgamma(1 + 1 / k)
        return log_s

    def alpha(self, context: AttentionContext) -> Tensor:
        """α of the gamma prior, (B, H, T|1, S)."""
        return gamma_shape(self.settings.prior_strength, self.prior.once(context))

    def upward(self, logits: Tensor, context: AttentionContext) -> UpwardStates:
        """The states h^L … h^1 of all layers, which the first layer of a forward pass computes.

        A stack with one layer recomputes them in every call, because an LSTM decoder calls its one
        attention layer once per query.
        """
        state = context.stack.state
        if "babn" not in state or len(self.shared(context.stack).chain.layers) == 1:
            state["babn"] = self.shared(context.stack).chain(at_least_float(logits), context)
        return state["babn"]


class SharedUpward(nn.Module):
    """Parameters of a stack: the upward chain and, with ``share_layers``, the maps f1 and f2."""

    def __init__(self, chain: UpwardChain, maps: nn.Module | None) -> None:
        super().__init__()
        self.chain = chain
        self.maps = maps


def num_upward_maps(settings: BABN) -> int:
    """The number of maps of h^l: 1 (f1) if the setting ``sigma`` is 0, else 2 (f1 and f2)."""
    return 2 if settings.sigma > 0 else 1


def build_maps(settings: BABN, maps: int, num_heads: int) -> nn.Module:
    """A module with ``maps`` linear maps of h along the axis named by the setting ``upward``."""
    if settings.upward == "heads":
        return HeadMap(maps, num_heads)
    return PositionMap(maps, settings.max_positions)


def build_f1_f2(settings: BABN, num_heads: int) -> nn.Module:
    """The maps f1 and, if σ > 0, f2, with the initial f1 that the setting ``start`` names."""
    maps = build_maps(settings, num_upward_maps(settings), num_heads)
    if settings.start == "even":
        nn.init.normal_(maps.weight.data[0], std=INIT_STD)
    return maps
