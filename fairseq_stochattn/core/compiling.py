"""Compiles functions of tensors by torch.compile, and runs them as they are where that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)


class Compiled:
    """A function compiled for tensors of any size at its first call.

    Without a working compiler (torch needs g++ or clang on a CPU, Triton on a GPU), one line is
    logged and the function itself runs from then on. The function must have no side effects.
    """

    failed = False  # in this process, for all functions

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if Compiled.failed:
            return self.function(*args)
        if self._compiled is not None:
            return self._compiled(*args)
        try:
            compiled = torch.compile(self.function, dynamic=True, fullgraph=True)
            result = compiled(*args)
        except Exception as error:
            Compiled.failed = True
            cause = str(error).strip().splitlines() or [type(error).__name__]
            logger.warning("attention runs without torch.compile, which failed: %s", cause[0])
            return self.function(*args)
        self._compiled = compiled
        return result
