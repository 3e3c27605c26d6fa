"""Settings of repulsive attention; the flags ``--repulsive-*`` are derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...core.errors import SettingError, require_not_negative, require_positive
from ...core.settings import Settings, setting
from .particles import Hyperparameters


@dataclass(frozen=True)
class RepulsiveSettings(Settings):
    """Settings of repulsive attention."""

    method = "repulsive"

    rule: Literal["directions", "svgd", "spos", "sgld"] = setting(
        "directions",
        "update rule of the heads: directions (heads turn away from each other and keep their "
        "lengths), svgd (the paper's repulsion, Eq. 4), spos (svgd with noise, Eq. 5), or sgld "
        "(noise, no repulsion)",
    )
    strength: float = setting(
        1.0,
        "directions: strength of the repulsion. In each update a head turns by at most the "
        "strength times the learning rate, in radians; with coupling gradient, the repulsion is at "
        "most this multiple of the head's gradient",
    )
    coupling: Literal["decoupled", "gradient"] = setting(
        "decoupled",
        "directions: how the repulsion is applied: decoupled from the optimizer, as AdamW applies "
        "weight decay, or added to the gradient relative to its norm",
    )
    smoothing: float | None = setting(
        None,
        "share, from 0 to 1, of the kernel-weighted mean over heads in the gradient of a head; by "
        "default 1 in svgd and spos (Eq. 4) and 0 in directions",
    )
    epsilon: float = setting(
        0.1,
        "svgd, spos, sgld: stepsize ε. The gradient of a head is replaced by −εφ. Adam cancels a "
        "constant factor, so with Adam ε only matters for gradient clipping and relative to the "
        "noise",
    )
    weight: float = setting(0.01, "svgd, spos: a, weight of the repulsion")
    beta: float = setting(
        1e10,
        "β, inverse temperature of spos and sgld. Noise of standard deviation √(2ε/β) is added to "
        "−εφ. In spos, −εφ without noise is about ε/H times the gradient of the mean loss, for H "
        "heads; larger noise hides it",
    )
    kernel: Literal["rbf", "cosine"] = setting(
        "rbf", "svgd, spos: kernel between heads; cosine is that of the paper's Table 9"
    )
    prior: float = setting(
        0.0,
        "precision 1/σ² of a Gaussian prior on the heads (the paper's Table 7), in units of the "
        "mean loss; 0 is the uniform prior",
    )
    variant: Literal["paper", "released"] = setting(
        "paper",
        "svgd, spos, sgld: as in the paper, or as in the authors' released code (other bandwidth, "
        "no biases, noise relative to the median gradient)",
    )
    projections: str = setting(
        "all", "projections whose heads repel each other: all, or a list such as q,k,v"
    )
    sites: str = setting("all", "sites whose heads repel each other: all, or encoder,decoder,cross")
    layers: str = setting("all", "layers whose heads repel each other: all, first, last, or 0,2")
    start: int = setting(0, "update at which the rule starts; before it, nothing is changed")

    def check(self) -> None:
        require_positive(self, "epsilon", "beta")
        require_not_negative(self, "strength", "weight", "prior", "start")
        if self.smoothing is not None and not 0 <= self.smoothing <= 1:
            raise SettingError(self, "smoothing", f"must be from 0 to 1, not {self.smoothing}")

    @property
    def acts_on_directions(self) -> bool:
        return self.rule == "directions"

    @property
    def decoupled(self) -> bool:
        """Whether the repulsion changes the parameters, not their gradients."""
        return self.acts_on_directions and self.coupling == "decoupled"

    @property
    def biases(self) -> bool:
        """Whether the biases of a head belong to its particle.

        The bias of the keys has no gradient, because the softmax ignores it, so an adaptive
        optimizer turns the slightest repulsion of it into full steps.
        """
        return not self.acts_on_directions and self.variant == "paper"

    @property
    def smoothed(self) -> float:
        """The share of smoothing, with the default of the rule."""
        default = 0.0 if self.acts_on_directions else 1.0
        return default if self.smoothing is None else self.smoothing

    @property
    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(
            self.epsilon,
            self.weight,
            self.beta,
            self.prior,
            self.smoothed,
            self.kernel,
            self.variant == "released",
        )
