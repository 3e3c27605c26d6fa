"""Imports packages that only some features need. Errors say how to install a missing one."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from .errors import InputError

# Import name → name of the package, where they differ.
_PACKAGES = {"sklearn": "scikit-learn"}


def optional_import(module: str, purpose: str, extra: str | None = "analysis") -> ModuleType:
    """Return the imported ``module``. If it is missing, the error says what to install.

    That is an extra of this package or, with ``extra`` None, the other package itself.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise _missing(module, purpose, extra) from None


def require_package(module: str, purpose: str, extra: str = "analysis") -> None:
    """Raise ``InputError`` if ``module`` is not installed. Call this before long work."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, purpose, extra)


def _missing(module: str, purpose: str, extra: str | None) -> InputError:
    name = module.split(".")[0]
    package = _PACKAGES.get(name, name)
    wanted = package if extra is None else f"'fairseq_stochattn[{extra}]'"
    return InputError(f"{purpose} needs {package}: pip install {wanted}")
