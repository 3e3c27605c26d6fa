"""BAM: Bayesian attention modules (Fan et al. 2020), the baseline inside the BABN paper.

The unnormalised weights S have mean exp(Φ) and a fixed width: Weibull with shape k, or lognormal
with width s. The prior is a gamma or a lognormal with a constant or a contextual mean.
"""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_stochattn.attention.belief import SCORES, log_scores
from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.method import AttentionMethod, Place, register_method
from fairseq_stochattn.attention.prior import ContextualPrior
from fairseq_stochattn.distributions import (
    kl_lognormal,
    kl_weibull_gamma,
    lognormal_log_sample,
    lognormal_variation,
    weibull_log_sample,
    weibull_noise,
    weibull_variation,
)
from fairseq_stochattn.errors import require_positive


@dataclass
class BayesianConfig(FairseqDataclass):
    bam_distribution: ChoiceEnum(["weibull", "lognormal"]) = field(
        default="weibull", metadata={"help": "distribution of the unnormalised weights"}
    )
    bam_scores: SCORES = field(
        default="normalized",
        metadata={"help": "mean of the weights, exp(Φ): normalized over the keys, or raw"},
    )
    bam_k: float = field(default=10.0, metadata={"help": "shape k of the Weibull"})
    bam_s: float = field(default=0.1, metadata={"help": "width s of the lognormal"})
    bam_prior: ChoiceEnum(["contextual", "constant"]) = field(
        default="contextual", metadata={"help": "mean of the prior: from the keys, or constant"}
    )
    bam_alpha: float = field(default=1.0, metadata={"help": "constant prior: shape, or mean"})
    bam_beta: float = field(default=1.0, metadata={"help": "rate of the gamma prior"})
    bam_prior_s: float = field(default=1.0, metadata={"help": "width of the lognormal prior"})
    bam_prior_hidden: int = field(
        default=32, metadata={"help": "hidden units of the contextual prior"}
    )


@register_method("bam")
class BayesianAttention(AttentionMethod):
    """Bayesian attention module: Weibull or lognormal weights of fixed width.

    In one layer: a sample (or the mean) of log S, and the KL to the prior.
    """

    Config = BayesianConfig
    samples_at_test = True
    plain_at_test = True  # the mean of S is exp(Φ)

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        require_positive(config, "bam_k", "bam_s", "bam_alpha", "bam_beta")
        require_positive(config, "bam_prior_s", "bam_prior_hidden")
        self.config = config
        self.normalized = str(config.bam_scores) == "normalized"
        self.weibull = str(config.bam_distribution) == "weibull"
        self.prior = None
        if str(config.bam_prior) == "contextual":
            self.prior = ContextualPrior(place.head_dim, config.bam_prior_hidden)

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        """Φ (B, H, T, S) → log S, or log E[S] = Φ at test time."""
        if not (self.stochastic or self.losses_wanted):
            return logits
        with torch.autocast(logits.device.type, enabled=False):
            scores = log_scores(logits, cells, self.normalized)
            if self.losses_wanted:
                self._leave_losses(scores, cells)
            return self.sample(scores) if self.stochastic else scores

    def sample(self, scores: Tensor) -> Tensor:
        config = self.config
        if self.weibull:
            log_scale = scores - math.lgamma(1 + 1 / config.bam_k)
            return weibull_log_sample(log_scale, config.bam_k, weibull_noise(scores))
        mu = scores - config.bam_s**2 / 2
        return lognormal_log_sample(mu, config.bam_s, torch.randn_like(scores))

    def kl(self, scores: Tensor, alpha: Tensor) -> Tensor:
        """The KL of every cell; alpha (B, H, 1, S) or a scalar."""
        config = self.config
        if self.weibull:
            k = scores.new_tensor(config.bam_k)
            log_scale = scores - math.lgamma(1 + 1 / config.bam_k)
            return kl_weibull_gamma(k, log_scale, alpha, config.bam_beta)
        s, prior_s = scores.new_tensor(config.bam_s), scores.new_tensor(config.bam_prior_s)
        # Both means are exp(location + width²/2): that of the prior is α.
        return kl_lognormal(scores - s**2 / 2, s, alpha.log() - prior_s**2 / 2, prior_s)

    def alpha(self, scores: Tensor, cells: Cells) -> Tensor:
        """The prior's mean, (B, H, 1, S) or a scalar."""
        if self.prior is None:
            return scores.new_tensor(self.config.bam_alpha)
        return self.prior.once(cells)

    def _leave_losses(self, scores: Tensor, cells: Cells) -> None:
        count = cells.valid.sum() * scores.size(1)
        kl = self.kl(scores, self.alpha(scores, cells))
        self.leave("kl", (kl * cells.valid.to(kl.dtype)).sum(), weight=1.0, count=count)
        if self.weibull:
            variation = weibull_variation(scores.new_tensor(self.config.bam_k))
        else:
            variation = scores.new_tensor(lognormal_variation(self.config.bam_s))
        self.leave("noise", variation * count, count=count)
