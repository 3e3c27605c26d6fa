"""Systems of particles in a model: the H heads of one projection of one attention module.

The projections Q, K and V of a layer are three systems. A particle consists of a head's rows of the
weight and, in the paper's rules, of the bias. Small systems of equal shape are stacked and
processed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.distributions import at_least_float
from ...core.errors import InputError
from ...core.heads import HeadParameter, by_head, find_heads, held_parts, select_heads
from .directions import mixed_with_gradient, turn
from .particles import Hyperparameters, Mixture, Rule, gram

# Largest number of elements of one stack, by device. Stacking copies the parameters: on a CPU that
# is worthwhile only within its caches; on a GPU it saves kernel launches.
_STACK_SIZE = {"cpu": 2**16}
_DEFAULT_STACK_SIZE = 2**25


@dataclass(frozen=True)
class System:
    """``num_heads`` particles; particle i is head i of every part (weight and bias)."""

    num_heads: int
    parts: tuple[HeadParameter, ...]  # the parameters that the optimizer updates
    site: str = ""
    layer: int = 0

    @property
    def layer_name(self) -> str:
        """The site and index of the layer, such as ``encoder_0``."""
        return f"{self.site}_{self.layer}"

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
    biases: bool = True,
) -> list[System]:
    """The systems of the selected heads; frozen parameters are left out.

    Layers that share their parameters, as in ALBERT, have one system in common.

    ``held`` maps every trained parameter to the one that the optimizer updates: itself or its fp32
    copy. ``prefix`` precedes the names of settings in error messages. Without ``biases``, particles
    consist of weights alone.
    """
    systems, seen = [], set()
    for group in select_heads(
        find_heads(model), sites, layers, (f"{prefix}sites", f"{prefix}layers")
    ):
        for kind in _select_projections(projections, list(group.parameters), prefix):
            chosen = [p for p in group.parameters[kind] if biases or len(p.shape) > 1]
            parts = held_parts(chosen, held)
            if parts and parts not in seen:
                seen.add(parts)
                systems.append(System(group.num_heads, parts, group.site, group.layer))
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
    for parts, _ in _stacks(systems):
        device = parts[0].device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        mixture = rule(_gram(parts), settings).with_prior(settings.prior).scaled(-settings.epsilon)
        for part in parts:
            part.redirect(mixture, generators[device], relative_noise=settings.released)


@torch.no_grad()
def add_directions(
    systems: Iterable[System], strength: float | None, smoothing: float, prior: float
) -> None:
    """Add the repulsion of directions to the gradients, in place; None leaves the repulsion out.

    ``smoothing`` mixes the gradients of the heads, ``prior`` adds that of a Gaussian prior.
    """
    for parts, _ in _stacks(systems):
        norms = None
        if strength is not None:
            norms = sum(part.squared_gradients() for part in parts).sqrt()
        mixture = mixed_with_gradient(_gram(parts), norms, strength or 0.0, smoothing)
        for part in parts:
            part.redirect(mixture.with_prior(prior).scaled(-1.0))


@torch.no_grad()
def turn_heads(systems: Iterable[System], rate: Callable[[System], float]) -> None:
    """Turn the heads away from each other, in place: θ_i += rate·‖θ_i‖·t_i (directions.py)."""
    for parts, alike in _stacks(systems):
        matrix = _gram(parts)
        rates = torch.tensor([float(rate(x)) for x in alike], dtype=matrix.dtype)
        # A copy from pageable memory to a GPU does not wait for the GPU.
        step = turn(matrix, rates.to(matrix.device, non_blocking=True))
        for part in parts:
            part.move(step)


@torch.no_grad()
def gradient_size(systems: Iterable[System]) -> Tensor | None:
    """The root mean square of the gradients of all heads, a scalar; None without gradients."""
    grads = [part.grad for system in systems if system.has_gradient for part in system.parts]
    if not grads:
        return None
    total = torch.stack([grad.float().square().sum() for grad in grads]).sum()
    return (total / sum(grad.numel() for grad in grads)).sqrt()


def _stacks(systems: Iterable[System]) -> Iterable[tuple[list[_Part], list[System]]]:
    """Systems of equal shape that have a gradient, with one part for weights and one for biases."""
    for alike in _by_shape(system for system in systems if system.has_gradient):
        heads = alike[0].num_heads
        yield [_Part(part, heads) for part in zip(*(x.parts for x in alike), strict=True)], alike


def _gram(parts: Sequence[_Part]) -> Tensor:
    return sum(part.gram() for part in parts)


class _Part:
    """The weights (or the biases) of S systems of equal shape, divided into stacks."""

    def __init__(self, parameters: Sequence[HeadParameter], heads: int) -> None:
        first = parameters[0]
        limit = _STACK_SIZE.get(first.device.type, _DEFAULT_STACK_SIZE)
        self.heads, self.device = heads, first.device
        self.size = max(1, limit // first.numel())
        self.stacks = [
            parameters[start : start + self.size] for start in range(0, len(parameters), self.size)
        ]

    def gram(self) -> Tensor:
        """θθᵀ of this part, (S, H, H)."""
        return torch.cat([gram(self._stacked(stack)) for stack in self.stacks])

    def squared_gradients(self) -> Tensor:
        """‖∇_i U‖² of this part, (S, H)."""
        return torch.cat([self._stacked(_grads(x)).square().sum(dim=2) for x in self.stacks])

    def redirect(
        self,
        mixture: Mixture,
        generator: torch.Generator | None = None,
        relative_noise: bool = False,
    ) -> None:
        """Replace the gradients of this part by those of ``mixture``, in place.

        With ``relative_noise``, the noise is multiplied by the median of |∇U| in its system.
        """
        buffer = None  # for φ, reused: allocating it for every stack dominates the run time
        for stack, coefficients in zip(self.stacks, mixture.split(self.size), strict=True):
            theta = self._stacked(stack)  # (≤ size, H, d·…)
            buffer = torch.empty_like(theta) if buffer is None else buffer[: len(stack)]
            grads = _grads(stack)
            gradient, xi = self._stacked(grads), None
            if coefficients.noise:
                xi = torch.empty_like(theta).normal_(generator=generator)
                if relative_noise:
                    xi *= gradient.abs().flatten(1).median(dim=1).values.view(-1, 1, 1)
            phi = coefficients.direction(gradient, theta, xi, out=buffer)
            for grad, new in zip(grads, phi, strict=True):
                grad.copy_(new.view_as(grad))

    def move(self, matrix: Tensor) -> None:
        """Add ``matrix`` (S, H, H) times the parameters to the parameters, in place."""
        for stack, coefficients in zip(self.stacks, matrix.split(self.size), strict=True):
            step = torch.bmm(coefficients, self._stacked(stack))
            for parameter, new in zip(stack, step, strict=True):
                values = parameter.detach()
                values.add_(new.view_as(values))  # added in fp32, also to fp16 parameters

    def _stacked(self, tensors: Sequence[Tensor]) -> Tensor:
        """(S, H, d·…) in fp32 or better; a single tensor is not copied."""
        rows = [by_head(tensor.detach(), self.heads) for tensor in tensors]
        return at_least_float(torch.stack(rows) if len(rows) > 1 else rows[0].unsqueeze(0))


def _grads(stack: Sequence[HeadParameter]) -> list[Tensor]:
    return [parameter.grad for parameter in stack]


def _by_shape(systems: Iterable[System]) -> Iterable[list[System]]:
    """The systems in groups of equal shapes, types and devices."""
    alike: dict[tuple, list[System]] = {}
    for system in systems:
        kind = (system.num_heads, *((p.shape, p.dtype, p.device) for p in system.parts))
        alike.setdefault(kind, []).append(system)
    return alike.values()
