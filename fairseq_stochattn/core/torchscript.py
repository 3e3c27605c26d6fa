"""TorchScript: attention methods are neither scripted nor traced; both raise one clear error.

Methods run Python that TorchScript cannot compile, and a trace would record the padding and the
random numbers of its example. A model that computes plain attention at test time can be exported,
or reverted, to a plain model, which torch.jit accepts as usual.
"""

from __future__ import annotations

import sys

import torch

from .errors import InputError

ADVICE = (
    "use a plain model instead: stochattn-export writes one from a fairseq checkpoint, and "
    "revert(model) undoes convert"
)
NOT_SCRIPTED = f"torch.jit.script cannot compile attention methods; {ADVICE}"
NOT_TRACED = (
    "torch.jit.trace cannot record attention methods, which depend on padding and random numbers; "
    f"{ADVICE}"
)


class RefusesTorchScript:
    """Mixin for modules: compiling or tracing a model that contains one raises ``InputError``."""

    def __prepare_scriptable__(self) -> None:
        """Called by ``torch.jit.script`` for every module before it compiles anything."""
        raise InputError(NOT_SCRIPTED)

    @property
    def __jit_ignored_attributes__(self) -> list[str]:
        """Raises ``InputError`` for ``torch.jit``; other readers get an empty list.

        ``torch.jit.trace`` has no hook to refuse a module, but it reads this attribute first, so
        the error is raised here. Other readers are, for example, ``inspect.getmembers``.
        """
        reader = sys._getframe(1).f_globals.get("__name__", "")
        if reader.startswith(("torch.jit", "torch._jit")):
            raise InputError(NOT_TRACED)
        return []


def refuse_tracing() -> None:
    """Raise ``InputError`` while ``torch.jit.trace`` records a function that calls a model."""
    if torch.jit.is_tracing():
        raise InputError(NOT_TRACED)
