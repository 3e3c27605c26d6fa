"""BAM: Bayesian attention modules (Fan et al. 2020), the baseline of the BABN paper.

The unnormalised attention weights S have mean exp(Φ), where Φ are the logits, and a fixed width.
They are Weibull variables with shape k, or lognormal variables with width s. The prior is a gamma
distribution for Weibull weights and a lognormal distribution for lognormal weights. The mean of the
prior is constant or computed from the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.context import AttentionContext
from ..core.cut_noise import sampled_variation
from ..core.distributions import (
    MIN_ALPHA,
    kl_lognormal,
    kl_weibull_gamma,
    lognormal_log_sample,
    lognormal_variation,
    weibull_log_sample,
    weibull_noise,
)
from ..core.errors import require_positive
from ..core.method import AttentionMethod, LayerInfo, register_method
from ..core.settings import setting
from .babn.attention import log_scores
from .babn.prior import BayesianSettings, ContextualPrior, gamma_shape


@dataclass(frozen=True)
class BAM(BayesianSettings):
    """Settings of Bayesian attention modules."""

    distribution: Literal["weibull", "lognormal"] = setting(
        "weibull", "distribution of the unnormalised weights"
    )
    scores: Literal["normalized", "raw"] = setting(
        "normalized", "mean of the weights, exp(logits): normalized over the keys, or raw"
    )
    k: float = setting(10.0, "shape k of the Weibull distribution")
    s: float = setting(0.1, "width s of the lognormal distribution")
    prior: Literal["contextual", "constant"] = setting(
        "contextual", "mean of the prior: computed from the keys, or constant"
    )
    alpha: float = setting(
        1.0,
        "constant prior: mean of the lognormal prior, or shape α of the gamma prior divided "
        "by the prior strength",
    )
    prior_s: float = setting(1.0, "width of the lognormal prior")

    def check(self) -> None:
        super().check()
        require_positive(self, "k", "s", "alpha", "prior_s")


@register_method("bam", settings=BAM)
class BAMAttention(AttentionMethod):
    """One layer of Bayesian attention modules: Weibull or lognormal weights of fixed width.

    It returns a sample of log S (or log E[S] at test time) and stores the KL divergence between
    posterior and prior as a loss.
    """

    settings: BAM
    samples_at_test = True
    plain_at_test = True  # the mean of S is exp(Φ)

    def __init__(self, settings: BAM, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.normalized = settings.scores == "normalized"
        self.weibull = settings.distribution == "weibull"
        self.prior = None
        if settings.prior == "contextual":
            self.prior = ContextualPrior(info.head_dim, settings.prior_hidden)

    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """Φ (B, H, T, S) → log S in training, log E[S] = Φ at test time, (B, H, T, S)."""
        if not (self.stochastic or self.losses_wanted):
            return logits
        with torch.autocast(logits.device.type, enabled=False):
            scores = log_scores(logits, context, self.normalized)
            if self.losses_wanted:
                self._add_losses(scores, context)
            return self.sample(scores) if self.stochastic else scores

    def sample(self, scores: Tensor) -> Tensor:
        """Return a sample of log S (B, H, T, S), where S has the mean exp(scores).

        With cut noise, the mean is another one by a factor that is the same for all pairs, so that
        the normalised weights do not change.
        """
        settings = self.settings
        if self.weibull:
            noise = weibull_noise(scores, *settings.noise_bounds)
            return weibull_log_sample(scores - math.lgamma(1 + 1 / settings.k), settings.k, noise)
        mu = scores - settings.s**2 / 2
        return lognormal_log_sample(mu, settings.s, torch.randn_like(scores))

    def kl(self, scores: Tensor, prior_mean: Tensor) -> Tensor:
        """The KL of every (query, key) pair, (B, H, T, S).

        ``prior_mean`` is (B, H, T|1, S) or a scalar.
        """
        settings = self.settings
        if self.weibull:
            k = scores.new_tensor(settings.k)
            log_scale = scores - math.lgamma(1 + 1 / settings.k)
            alpha = gamma_shape(settings.prior_strength, prior_mean)
            return kl_weibull_gamma(k, log_scale, alpha, settings.rate)
        s, prior_s = scores.new_tensor(settings.s), scores.new_tensor(settings.prior_s)
        # A lognormal variable has the mean exp(location + width²/2). The mean of the posterior is
        # exp(Φ).
        prior_mu = prior_mean.clamp(min=MIN_ALPHA).log() - prior_s**2 / 2
        return kl_lognormal(scores - s**2 / 2, s, prior_mu, prior_s)

    def prior_mean(self, scores: Tensor, context: AttentionContext) -> Tensor:
        """The mean of the prior: (B, H, T|1, S) if computed from the keys, or a scalar."""
        if self.prior is None:
            return scores.new_tensor(self.settings.alpha)
        return self.prior.once(context)

    def _add_losses(self, scores: Tensor, context: AttentionContext) -> None:
        count = context.num_valid * scores.size(1)
        kl = self.kl(scores, self.prior_mean(scores, context))
        total = (kl * context.valid.to(kl.dtype)).sum()
        settings = self.settings
        self.add_loss("kl", total, settings.kl_schedule, settings.kl_loss_reduction, count)
        if self.weibull:
            variation = sampled_variation(scores.new_tensor(settings.k), settings.noise_bounds)
        else:
            variation = scores.new_tensor(lognormal_variation(settings.s))
        self.add_measure("noise", variation * count, count)
