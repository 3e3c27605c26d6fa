"""Copies parameters to other parameters, together with what a fairseq optimizer stores for them.

Three things are copied: the parameter, its fp32 copy under ``--fp16`` (which may be a part of one
flat vector), and, if wanted, the optimizer's state: moments and step counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer
from fairseq.optim.composite import CompositeOptimizer
from torch import Tensor, nn

Pairs = list[tuple[nn.Parameter, nn.Parameter]]  # (from, to)


@torch.no_grad()
def copy_parameters(pairs: Pairs, optimizer: FairseqOptimizer, with_state: bool) -> None:
    """Copy the first parameter of each pair to the second, and with ``with_state`` its state."""
    copies = getattr(optimizer, "fp32_params", None)  # only with --fp16
    held: dict[Tensor, Tensor] = {}  # parameter → its fp32 copy
    if isinstance(copies, dict):
        (flat,) = copies.values()
        held = _parts(flat.data, optimizer.fp16_params)
    elif copies is not None:
        held = dict(zip(optimizer.fp16_params, copies, strict=True))
    for source, target in pairs:
        target.copy_(source)
        if target in held:
            held[target].copy_(held[source])
    if not with_state:
        return
    for states in _states(optimizer):
        if isinstance(copies, dict):
            _copy_parts(states.get(flat, {}), flat.numel(), pairs, optimizer.fp16_params)
        else:
            _copy_states(states, [(held.get(a, a), held.get(b, b)) for a, b in pairs])


def _parts(flat: Tensor, parameters: Iterable[nn.Parameter]) -> dict[Tensor, Tensor]:
    """For each parameter, the view of a flat vector that belongs to it."""
    parameters = list(parameters)
    return {
        parameter: part.view_as(parameter)
        for parameter, part in zip(
            parameters, flat.split([p.numel() for p in parameters]), strict=True
        )
    }


def _states(optimizer: FairseqOptimizer) -> list[dict[Tensor, dict[str, Any]]]:
    """The state of every torch optimizer inside: parameter → its moments and counts."""
    inner = optimizer.optimizer
    if isinstance(inner, CompositeOptimizer):
        return [part.optimizer.state for part in inner.optimizers.values()]
    return [inner.state]


def _copy_states(states: dict[Tensor, dict[str, Any]], pairs: Pairs) -> None:
    """Copy the state of each pair's first parameter to the second."""
    for source, target in pairs:
        if source not in states:  # it has never had a gradient
            states.pop(target, None)
            continue
        state = states.setdefault(target, {})
        for name, value in states[source].items():
            if torch.is_tensor(value) and torch.is_tensor(state.get(name)):
                state[name].copy_(value)
            else:
                state[name] = value.clone() if torch.is_tensor(value) else value


def _copy_parts(
    state: dict[str, Any], size: int, pairs: Pairs, parameters: list[nn.Parameter]
) -> None:
    """Like ``_copy_states``, within the state of one flat vector of ``size`` numbers.

    Values of another size, such as the step count, belong to all parameters and stay.
    """
    for value in state.values():
        if torch.is_tensor(value) and value.numel() == size:
            part = _parts(value.view(-1), parameters)
            for source, target in pairs:
                if target in part:
                    part[target].copy_(part[source])
