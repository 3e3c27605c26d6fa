"""Output files, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_stochattn.errors import UsageError


@contextmanager
def whole_file(destination: Path) -> Iterator[Path]:
    """A path to write to; it becomes ``destination`` when the block ends without an error."""
    if not destination.parent.is_dir():
        raise UsageError(f"{destination.parent} is no directory")
    if destination.is_dir():
        raise UsageError(f"{destination} is a directory")
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)
