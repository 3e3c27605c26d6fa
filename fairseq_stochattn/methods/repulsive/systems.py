"""Systems of particles in a model: the H heads of one projection of one attention module.

The projections Q, K and V of a layer are three systems. A particle consists of a head's rows of the
weight and of the bias. Small systems of equal shape are stacked and processed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.distributions import at_least_float
from ...core.errors import InputError
from ...core.heads import HeadParameter, by_head, find_heads, held_parts, select_heads
from .particles import Hyperparameters, Mixture, Rule, bandwidth, gram, squared_distances

# Largest number of elements of one stack, by device. Stacking copies the parameters: on a CPU that
# is worthwhile only within its caches; on a GPU it saves kernel launches.
_STACK_SIZE = {"cpu": 2**16}
_DEFAULT_STACK_SIZE = 2**25


@dataclass(frozen=True)
class System:
    """``num_heads`` particles; particle i is head i of every part (weight and bias)."""

    num_heads: int
    parts: tuple[HeadParameter, ...]  # the parameters that the optimizer updates

    @property
    def has_gradient(self) -> bool:
        """False if LayerDrop skipped the layer; optimizers do not update it then either."""
        return all(part.grad is not None for part in self.parts)


def find_systems(
    model: nn.Module,
    held: Mapping[nn.Parameter, nn.Parameter],
    sites: str,
    layers: str,
    projections: str,
    prefix: str = "",
) -> list[System]:
    """The systems of the selected heads; frozen parameters are left out.

    ``held`` maps every trained parameter to the one that the optimizer updates: itself or its fp32
    copy. ``prefix`` precedes the names of settings in error messages.
    """
    systems = []
    for group in select_heads(
        find_heads(model), sites, layers, (f"{prefix}sites", f"{prefix}layers")
    ):
        for kind in _select_projections(projections, list(group.parameters), prefix):
            parts = held_parts(group.parameters[kind], held)
            if parts:
                systems.append(System(group.num_heads, parts))
    if not systems:
        raise InputError("repulsive: all selected heads are frozen")
    return systems


def _select_projections(spec: str, present: list[str], prefix: str) -> list[str]:
    if spec.strip() == "all":
        return present
    wanted = [part.strip() for part in spec.split(",")]
    for kind in wanted:
        if kind not in present:
            known = ", ".join(present)
            raise InputError(f"{prefix}projections: no projection '{kind}' (known: {known})")
    return list(dict.fromkeys(wanted))


@torch.no_grad()
def redirect(systems: Iterable[System], rule: Rule, settings: Hyperparameters, seed: int) -> None:
    """Replace the gradients ∇U of the systems by −εφ, in place; ``seed`` determines the noise."""
    generators: dict[torch.device, torch.Generator] = {}
    for alike in _by_shape(system for system in systems if system.has_gradient):
        heads, device = alike[0].num_heads, alike[0].parts[0].device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        # One part for all weights, one for all biases.
        parts = [_Part(part, heads) for part in zip(*(x.parts for x in alike), strict=True)]
        squared = squared_distances(sum(part.gram() for part in parts))
        mixture = rule(squared, bandwidth(squared), settings).scaled(-settings.epsilon)
        for part in parts:
            part.redirect(mixture, generators[device])


class _Part:
    """The weights (or the biases) of S systems of equal shape, divided into stacks."""

    def __init__(self, parameters: Sequence[HeadParameter], heads: int) -> None:
        first = parameters[0]
        limit = _STACK_SIZE.get(first.device.type, _DEFAULT_STACK_SIZE)
        self.heads = heads
        self.size = max(1, limit // first.numel())
        self.stacks = [
            parameters[start : start + self.size] for start in range(0, len(parameters), self.size)
        ]

    def gram(self) -> Tensor:
        """θθᵀ of this part, (S, H, H)."""
        return torch.cat([gram(self._stacked(stack)) for stack in self.stacks])

    def redirect(self, mixture: Mixture, generator: torch.Generator) -> None:
        """Replace the gradients of this part by those of ``mixture``, in place."""
        buffer = None  # for φ, reused: allocating it for every stack dominates the run time
        for stack, coefficients in zip(self.stacks, mixture.split(self.size), strict=True):
            theta = self._stacked(stack)  # (≤ size, H, d·…)
            buffer = torch.empty_like(theta) if buffer is None else buffer[: len(stack)]
            grads = [parameter.grad for parameter in stack]
            xi = None
            if coefficients.noise:
                xi = torch.empty_like(theta).normal_(generator=generator)
            phi = coefficients.direction(self._stacked(grads), theta, xi, out=buffer)
            for grad, new in zip(grads, phi, strict=True):
                grad.copy_(new.view_as(grad))

    def _stacked(self, tensors: Sequence[Tensor]) -> Tensor:
        """(S, H, d·…) in fp32 or better; a single tensor is not copied."""
        rows = [by_head(tensor.detach(), self.heads) for tensor in tensors]
        return at_least_float(torch.stack(rows) if len(rows) > 1 else rows[0].unsqueeze(0))


def _by_shape(systems: Iterable[System]) -> Iterable[list[System]]:
    """The systems in groups of equal shapes, types and devices."""
    alike: dict[tuple, list[System]] = {}
    for system in systems:
        kind = (system.num_heads, *((p.shape, p.dtype, p.device) for p in system.parts))
        alike.setdefault(kind, []).append(system)
    return alike.values()
