"""Access to the scripts of data-prep, which commands share with the preparation of data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ..core.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]


def scripts_folder(package: Path = PACKAGE) -> Path:
    """Return the folder of the corpus scripts: in the installed package, or next to it."""
    candidates = (package / "data_prep", package.parent / "data-prep")
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise InputError(f"the corpus scripts are missing: there is no folder {candidates[0]}")


def script_module(name: str) -> ModuleType:
    """Import a module of the scripts, such as ``steps.subwords``, by its plain name."""
    folder = str(scripts_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


@contextmanager
def prep_errors() -> Iterator[None]:
    """Within the block, an error that the scripts report becomes ``InputError``."""
    try:
        yield
    except script_module("steps.errors").PrepError as error:
        raise InputError(str(error)) from None
