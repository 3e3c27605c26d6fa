"""Writes tensors to a file, with an error that names the cause if the disk is full."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import torch


def save_tensors(content: object, path: Path) -> None:
    """Write ``content`` with ``torch.save``. A full disk raises ``OSError``.

    ``torch.save`` itself raises a ``RuntimeError`` about positions in the file.
    """
    with path.open("wb") as file:
        writer = _Writer(file)
        try:
            torch.save(content, writer)
        except RuntimeError:
            if writer.error is not None:
                raise writer.error from None
            raise


class _Writer:
    """A file for ``torch.save`` that remembers the first error of the operating system."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()
