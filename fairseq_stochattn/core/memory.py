"""Makes the C library keep freed memory, so that every training step reuses that of the last one.

glibc returns large freed blocks to the system and takes them back page by page. A training step of
a small model on the CPU then spends a fifth of its time in page faults.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

# Parameters of mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_NEVER = 2**31 - 1  # bytes at the end of the heap above which they are returned to the system


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on; returns whether the C library can do so.

    Does nothing with a GPU, where the large tensors are not in the memory of the host. Environment
    variables of the C library, such as ``MALLOC_TRIM_THRESHOLD_``, are overridden.
    """
    if torch.cuda.is_available():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, 0))
