"""Systems of particles in a model: the H heads of one projection of one attention module.

Q, K and V of a layer are three systems. A head's bias rows belong to its particle together with its
weight rows. Several small systems of one shape are worked on at once, large ones one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.heads import by_head, find_heads, select_heads
from fairseq_stochattn.optim.particles import (
    Mixture,
    Rule,
    Settings,
    bandwidth,
    gram,
    squared_distances,
)

# How many numbers are copied into one tensor: on a CPU what its caches hold, so that large systems
# stay where they are; elsewhere what saves launches.
_AT_ONCE = {"cpu": 2**16}
_AT_ONCE_ELSEWHERE = 2**25


@dataclass(frozen=True)
class System:
    """M = ``num_heads`` particles: the rows ``by_head`` of its parts, the weight and the bias."""

    num_heads: int
    parts: tuple[nn.Parameter, ...]  # as the optimizer holds them

    @property
    def has_gradient(self) -> bool:
        """Not where LayerDrop has left out the layer; the base lets such a parameter rest, too."""
        return all(part.grad is not None for part in self.parts)


def find_systems(
    model: nn.Module,
    held: Mapping[nn.Parameter, nn.Parameter],
    sites: str,
    layers: str,
    projections: str,
) -> list[System]:
    """The systems of the selected heads; ``held`` are the model's parameters as optimized."""
    systems = []
    for group in select_heads(find_heads(model), sites, layers, "--repulsive"):
        for kind in _select_projections(projections, list(group.parameters)):
            parts = tuple(held[part] for part in group.parameters[kind] if part in held)
            if parts:
                systems.append(System(group.num_heads, parts))
    if not systems:
        raise UsageError("--optimizer repulsive: the selected heads are frozen, none is trained")
    return systems


def _select_projections(spec: str, present: list[str]) -> list[str]:
    if spec.strip() == "all":
        return present
    wanted = [part.strip() for part in spec.split(",")]
    for kind in wanted:
        if kind not in present:
            known = ", ".join(present)
            raise UsageError(f"--repulsive-projections: no projection '{kind}' (known: {known})")
    return list(dict.fromkeys(wanted))


@torch.no_grad()
def redirect(systems: Iterable[System], rule: Rule, settings: Settings, seed: int) -> None:
    """The gradients ∇U of the systems become −εφ, in place; the noise is that of the seed."""
    generators: dict[torch.device, torch.Generator] = {}
    for alike in _by_shape(system for system in systems if system.has_gradient):
        heads, device = alike[0].num_heads, alike[0].parts[0].device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        # All weights, all biases: each a list with one parameter a system.
        parts = [_Part(part, heads) for part in zip(*(x.parts for x in alike), strict=True)]
        squared = squared_distances(sum(part.gram() for part in parts))
        mixture = rule(squared, bandwidth(squared), settings).scaled(-settings.epsilon)
        for part in parts:
            part.redirect(mixture, generators[device])


class _Part:
    """The same part of S systems of one shape, in stacks of as many as are worked on at once."""

    def __init__(self, parameters: Sequence[nn.Parameter], heads: int) -> None:
        first = parameters[0]
        limit = _AT_ONCE.get(first.device.type, _AT_ONCE_ELSEWHERE)
        self.heads = heads
        self.size = max(1, limit // first.numel())
        self.stacks = [
            parameters[start : start + self.size] for start in range(0, len(parameters), self.size)
        ]

    def gram(self) -> Tensor:
        """θθᵀ of this part, (S, H, H)."""
        return torch.cat([gram(self._stacked(stack)) for stack in self.stacks])

    def redirect(self, mixture: Mixture, generator: torch.Generator) -> None:
        scratch = None  # for φ: fresh memory for every stack would take longer than all the rest
        for stack, own in zip(self.stacks, mixture.split(self.size), strict=True):
            theta = self._stacked(stack)  # (≤ size, H, d·…)
            scratch = torch.empty_like(theta) if scratch is None else scratch[: len(stack)]
            gradients = [parameter.grad for parameter in stack]
            xi = torch.empty_like(theta).normal_(generator=generator) if own.noise else None
            phi = own.direction(self._stacked(gradients), theta, xi, out=scratch)
            for gradient, new in zip(gradients, phi, strict=True):
                gradient.copy_(new.view_as(gradient))

    def _stacked(self, tensors: Sequence[Tensor]) -> Tensor:
        """(S, H, d·…) in fp32 or better; of a single tensor a view."""
        rows = [by_head(tensor.detach(), self.heads) for tensor in tensors]
        return at_least_float(torch.stack(rows) if len(rows) > 1 else rows[0].unsqueeze(0))


def _by_shape(systems: Iterable[System]) -> Iterable[list[System]]:
    alike: dict[tuple, list[System]] = {}
    for system in systems:
        kind = (system.num_heads, *((p.shape, p.dtype, p.device) for p in system.parts))
        alike.setdefault(kind, []).append(system)
    return alike.values()
