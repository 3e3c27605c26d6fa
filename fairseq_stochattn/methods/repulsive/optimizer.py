"""Repulsive attention (An et al. 2020, Algorithm 1) as a wrapper around any torch optimizer.

The heads of one projection of one layer are particles. Before every step their gradients are
replaced by −εφ, with φ from SVGD (Eq. 4), SPOS (Eq. 5) or SGLD (App. C.1); all other gradients stay
as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from ...core.errors import require_not_negative, require_positive
from ...core.settings import Settings, setting
from .particles import RULES, Hyperparameters
from .systems import System, find_systems, redirect


@dataclass(frozen=True)
class RepulsiveSettings(Settings):
    """Settings of repulsive attention."""

    method = "repulsive"

    rule: Literal["svgd", "spos", "sgld"] = setting(
        "svgd",
        "update rule of the heads: svgd (repulsion), spos (svgd with noise), or sgld (noise, no "
        "repulsion)",
    )
    epsilon: float = setting(
        0.1,
        "stepsize ε: the gradient of a head is replaced by −εφ. Adam cancels a constant factor, so "
        "with Adam ε only matters for gradient clipping and relative to the noise",
    )
    weight: float = setting(0.01, "a, weight of the repulsion")
    beta: float = setting(
        1e10,
        "β, inverse temperature of spos and sgld. Noise of standard deviation √(2ε/β) is added to "
        "−εφ. In spos, −εφ without noise is about ε/H times the gradient of the mean loss, for H "
        "heads; larger noise hides it",
    )
    projections: str = setting(
        "all", "projections whose heads repel each other: all, or a list such as q,k,v"
    )
    sites: str = setting("all", "sites whose heads repel each other: all, or encoder,decoder,cross")
    layers: str = setting("all", "layers whose heads repel each other: all, first, last, or 0,2")
    start: int = setting(0, "update at which the rule starts; before it, no gradient is changed")

    def check(self) -> None:
        require_positive(self, "epsilon", "beta")
        require_not_negative(self, "weight", "start")

    @property
    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(self.epsilon, self.weight, self.beta)


def noise_seed(seed: int, update: int) -> int:
    """A 32-bit seed for the noise of one update; torch's generator ignores higher bits."""
    return int(np.random.SeedSequence((seed, update)).generate_state(1)[0])


def redirect_gradients(
    systems: list[System], settings: RepulsiveSettings, seed: int, update: int
) -> None:
    """Replace the gradients of all particles by −εφ, in place, from update ``start`` on."""
    if update >= settings.start:
        rule = RULES[settings.rule]
        redirect(systems, rule, settings.hyperparameters, noise_seed(seed, update))


class Repulsive(torch.optim.Optimizer):
    """Wraps an optimizer: ``Repulsive(torch.optim.AdamW(model.parameters()), model)``.

    The keyword arguments are the fields of ``RepulsiveSettings``. Both optimizers share parameter
    groups and state, so a scheduler may be given either, and checkpoints fit both.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, seed: int = 1, **settings: Any
    ) -> None:
        self.base = optimizer
        self.settings = RepulsiveSettings(**settings)
        self.seed = seed
        self.num_updates = 0
        held = {p: p for group in optimizer.param_groups for p in group["params"]}
        chosen = (self.settings.sites, self.settings.layers, self.settings.projections)
        self.systems = find_systems(model, held, *chosen)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share_groups_and_state()

    def _share_groups_and_state(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Replace the gradients of the heads, then let the wrapped optimizer take its step.

        Clip gradients before this call. A closure is evaluated once, before the replacement.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        redirect_gradients(self.systems, self.settings, self.seed, self.num_updates)
        self.base.step()
        self.num_updates += 1
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, and the number of updates so far."""
        return {**self.base.state_dict(), "repulsive_updates": self.num_updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of the wrapped optimizer alone."""
        state_dict = dict(state_dict)
        self.num_updates = state_dict.pop("repulsive_updates", 0)
        self.base.load_state_dict(state_dict)
        self._share_groups_and_state()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the group to the wrapped optimizer; its heads, if any, are not particles."""
        if getattr(self, "param_groups", None) is self.base.param_groups:
            self.base.add_param_group(param_group)
        else:  # called by torch's constructor, before both share their groups
            super().add_param_group(param_group)
