"""Commands that print their own findings keep the life stories of libraries from the terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_only() -> Iterator[None]:
    """fairseq sets the root logger to DEBUG on import, and every library then tells its life."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(before)
