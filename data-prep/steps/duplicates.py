"""Count what occurs more than once, with memory that does not grow with the corpus.

Sixty-four bits of a hash stand for an item. They are spread over files by their first bits, so that
only one file's share is ever sorted in memory: a 256th of eight bytes an item.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

import numpy as np

FILES = 256
WAITING = 1_024  # hashes a file gathers before it is written to


def fingerprint(*texts: str) -> int:
    """64 bits that stand for texts, the same in every process and every run."""
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\x00")
    return int.from_bytes(digest.digest(), "big")


class DuplicateCounter:
    """Counts the items beyond the first of each kind; its files live in ``folder`` until then."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._waiting = [array("Q") for _ in range(FILES)]

    def add(self, item: int) -> None:
        share = item >> 56
        waiting = self._waiting[share]
        waiting.append(item)
        if len(waiting) == WAITING:
            self._write(share)

    def count(self) -> int:
        """The number of duplicates; removes the files."""
        found = 0
        for share in range(FILES):
            self._write(share)
            path = self._folder / f"{share:02x}"
            if path.exists():
                items = np.sort(np.fromfile(path, dtype=np.uint64))
                found += int((items[1:] == items[:-1]).sum())
                path.unlink()
        self._folder.rmdir()
        return found

    def _write(self, share: int) -> None:
        if self._waiting[share]:
            with (self._folder / f"{share:02x}").open("ab") as file:
                self._waiting[share].tofile(file)
            self._waiting[share] = array("Q")
