"""From one parameter to its twin, wherever a fairseq optimizer keeps something of it.

That is the parameter itself, its fp32 copy under ``--fp16`` (which may be a part of one flat
vector), and the optimizer's state: moments, step counts.
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
def copy_to_twins(pairs: Pairs, optimizer: FairseqOptimizer, with_state: bool) -> None:
    """Let the second of each pair be what the first is."""
    copies = getattr(optimizer, "fp32_params", None)  # of fp16 training
    held: dict[Tensor, Tensor] = {}
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
    """The stretch of a flat vector that belongs to each parameter."""
    parameters = list(parameters)
    return {
        parameter: part.view_as(parameter)
        for parameter, part in zip(
            parameters, flat.split([p.numel() for p in parameters]), strict=True
        )
    }


def _states(optimizer: FairseqOptimizer) -> list[dict[Tensor, dict[str, Any]]]:
    """What torch's optimizers remember of each parameter they hold."""
    inner = optimizer.optimizer
    if isinstance(inner, CompositeOptimizer):
        return [part.optimizer.state for part in inner.optimizers.values()]
    return [inner.state]


def _copy_states(states: dict[Tensor, dict[str, Any]], pairs: Pairs) -> None:
    for source, target in pairs:
        if source not in states:  # it has never had a gradient
            states.pop(target, None)
            continue
        known = states.setdefault(target, {})
        for name, value in states[source].items():
            if torch.is_tensor(value) and torch.is_tensor(known.get(name)):
                known[name].copy_(value)
            else:
                known[name] = value.clone() if torch.is_tensor(value) else value


def _copy_parts(
    state: dict[str, Any], size: int, pairs: Pairs, parameters: list[nn.Parameter]
) -> None:
    """The same within the state of one flat vector; what counts its steps is common to all."""
    for value in state.values():
        if torch.is_tensor(value) and value.numel() == size:
            part = _parts(value.view(-1), parameters)
            for source, target in pairs:
                if target in part:
                    part[target].copy_(part[source])
