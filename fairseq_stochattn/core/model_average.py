"""A second copy of a model whose parameters are a moving average of the model's.

θ̃ ← β·θ̃ + (1 − β)·θ
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class ModelAverage(nn.Module):
    """The copy with the parameters θ̃, in the precision of the model; the average is in fp32.

    The first call of ``follow`` makes the copy equal to the model, so that a model that is loaded
    after this object was built is averaged from its loaded parameters on. Checkpoints contain the
    average and the number of calls.
    """

    calls: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.values: dict[str, Tensor] = {}  # θ̃, fp32 or better; empty before the first call

    @property
    def started(self) -> bool:
        """Whether the copy follows a model already, in this run or in that of the checkpoint."""
        return int(self.calls) > 0

    @torch.no_grad()
    def follow(self, model: nn.Module, momentum: float) -> None:
        """Move the copy towards ``model``; ``momentum`` is β."""
        momentum = momentum if self.started else 0.0
        own = dict(self.model.named_parameters())
        for name, parameter in model.named_parameters():
            value = self._value(name, own[name])
            value.lerp_(parameter.detach().to(value), 1 - momentum)
            own[name].copy_(value)
        buffers = dict(model.named_buffers())
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])
        self.calls += 1

    def _value(self, name: str, parameter: Tensor) -> Tensor:
        kind = torch.promote_types(parameter.dtype, torch.float32)
        value = self.values.get(name)
        if value is None or value.device != parameter.device:
            value = parameter.detach() if value is None else value
            self.values[name] = value = value.to(parameter.device, kind, copy=True)
        return value

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:
        """The state, with the parameters of the copy in the precision of the average."""
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        named = {f"{prefix}model.{name}": value for name, value in self.values.items()}
        state.update({name: value for name, value in named.items() if name in state})
        return state

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name, parameter in self.model.named_parameters():
            stored = state_dict.get(f"{prefix}model.{name}")
            if stored is not None and stored.shape == parameter.shape:
                self._value(name, parameter).copy_(stored)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
