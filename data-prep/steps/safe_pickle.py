"""Read pickles of numpy arrays and scipy's sparse matrices without executing code from them.

A pickle names the functions and classes that rebuild its content. Only names on a list are looked
up; all others are refused. Files of Python 2 are read as latin1, in which their arrays are stored.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from steps.errors import PrepError


def _only_lists(factory: Any = None, *_: Any) -> defaultdict:
    """A defaultdict of lists, whatever factory the pickle names."""
    return defaultdict(list)


# What numpy itself uses to rebuild arrays and scalars; its module has moved between versions.
_ARRAY = {
    "_reconstruct": np.empty(0).__reduce__()[0],
    "scalar": np.float64(0).__reduce__()[0],
}
ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    **{("numpy.core.multiarray", name): f for name, f in _ARRAY.items()},
    **{("numpy._core.multiarray", name): f for name, f in _ARRAY.items()},
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): sparse.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): sparse.csr_matrix,
    ("collections", "defaultdict"): _only_lists,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is not allowed"
            ) from None


def load_pickle(path: Path) -> Any:
    """Return the content of a pickle: arrays, sparse matrices, dictionaries, lists and numbers."""
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle raises errors of any kind
        cause = " ".join(str(error).split()) or type(error).__name__
        raise PrepError(f"{path} is not a pickle of arrays: {cause[:200]}") from None
