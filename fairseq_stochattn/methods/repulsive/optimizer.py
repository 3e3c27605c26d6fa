"""Repulsive attention as a wrapper around any torch optimizer.

The heads of one projection of one layer are particles. The rule ``directions`` turns them away from
each other in every step. The rules of An et al. 2020 (Algorithm 1) replace their gradients by −εφ,
with φ from SVGD (Eq. 4), SPOS (Eq. 5) or SGLD (App. C.1). All other parameters stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ...core.heads import RowBlock
from .particles import RULES
from .settings import RepulsiveSettings
from .systems import System, add_directions, find_systems, gradient_size, redirect, turn_heads

# Adam's step is g/(|g| + eps): below this many eps, gradients become visibly smaller steps.
_NEAR_EPS = 10.0
_CHECK_INTERVAL = 100  # updates between two checks of the size of the gradients


def noise_seed(seed: int, update: int) -> int:
    """A 32-bit seed for the noise of one update; torch's generator ignores higher bits."""
    return int(np.random.SeedSequence((seed, update)).generate_state(1)[0])


def systems_for(
    model: nn.Module,
    held: Mapping[nn.Parameter, nn.Parameter],
    settings: RepulsiveSettings,
    prefix: str = "",
) -> list[System]:
    """The systems that the settings select (``find_systems``)."""
    chosen = (settings.sites, settings.layers, settings.projections)
    return find_systems(model, held, *chosen, prefix=prefix, biases=settings.biases)


def redirect_gradients(
    systems: list[System], settings: RepulsiveSettings, seed: int, update: int
) -> None:
    """Change the gradients of all particles as the rule says, in place, from ``start`` on."""
    if update < settings.start:
        return
    if settings.acts_on_directions:
        strength = None if settings.decoupled else settings.strength
        if strength is not None or settings.smoothed or settings.prior:
            add_directions(systems, strength, settings.smoothed, settings.prior)
        return
    hyper = settings.hyperparameters
    redirect(systems, RULES[settings.rule], hyper, noise_seed(seed, update))


def turn_decoupled(
    systems: list[System],
    settings: RepulsiveSettings,
    update: int,
    rate: Callable[[System], float],
) -> None:
    """Turn the heads by the decoupled repulsion, if the settings have one, from ``start`` on.

    ``rate`` gives the learning rate of a system. To be called before the wrapped optimizer takes
    its step, as AdamW applies weight decay.
    """
    if settings.decoupled and settings.strength and update >= settings.start:
        turn_heads(systems, lambda system: settings.strength * rate(system))


def learning_rates(param_groups: Sequence[Mapping[str, Any]]) -> Callable[[System], float]:
    """A function that returns the learning rate of a system, given all parameter groups."""
    rates = {id(p): group["lr"] for group in param_groups for p in group["params"]}

    def rate(system: System) -> float:
        first = system.parts[0]
        return rates[id(first.parameter if isinstance(first, RowBlock) else first)]

    return rate


def small_gradients(
    systems: list[System], settings: RepulsiveSettings, eps: Any, update: int
) -> str | None:
    """A warning if ε/M has made the gradients about as small as the optimizer's eps, else None.

    Measured only in some updates, because it has to wait for the device.
    """
    if settings.acts_on_directions or not isinstance(eps, float) or update < settings.start:
        return None
    if (update - settings.start) % _CHECK_INTERVAL:
        return None
    size = gradient_size(systems)
    if size is None or not 0 < (found := size.item()) < _NEAR_EPS * eps:
        return None
    scale = settings.epsilon / max(system.num_heads for system in systems)
    return (
        f"repulsive: ε/M = {scale:g} brings the gradients of the heads to {found:.1e}, near the "
        f"optimizer's eps {eps:g}, so the heads learn more slowly: raise epsilon or lower eps"
    )


class Repulsive(torch.optim.Optimizer):
    """Wraps an optimizer: ``Repulsive(torch.optim.AdamW(model.parameters()), model)``.

    The keyword arguments are the fields of ``RepulsiveSettings``; ``seed`` is that of the noise of
    the rules ``spos`` and ``sgld``. Both optimizers share parameter
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
        self.systems = systems_for(model, held, self.settings)
        self._warned = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share_groups_and_state()

    def _share_groups_and_state(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the rule to the heads, then let the wrapped optimizer take its step.

        Clip gradients before this call. A closure is evaluated once, before the rule.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        redirect_gradients(self.systems, self.settings, self.seed, self.num_updates)
        self._warn_once()
        rate = learning_rates(self.param_groups)
        turn_decoupled(self.systems, self.settings, self.num_updates, rate)
        self.base.step()
        self.num_updates += 1
        return loss

    def _warn_once(self) -> None:
        if not self._warned:
            eps = self.param_groups[0].get("eps")
            text = small_gradients(self.systems, self.settings, eps, self.num_updates)
            if text is not None:
                warnings.warn(text, stacklevel=3)
                self._warned = True

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
