"""Count duplicates in memory that does not grow with the corpus.

Each item is represented by a 64-bit hash. The hashes are distributed over 256 files by their first
eight bits, and one file at a time is sorted in memory. The memory needed is therefore about 1/256
of eight bytes per item.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

import numpy as np

BUCKETS = 256
BUFFER = 1_024  # hashes kept per bucket before they are written to its file


def fingerprint(*texts: str) -> int:
    """Return a 64-bit hash of the texts that is the same in every process and every run."""
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\x00")
    return int.from_bytes(digest.digest(), "big")


class DuplicateCounter:
    """Counts repeated hashes. Temporary files are in ``folder`` until ``count`` is called."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._buffers = [array("Q") for _ in range(BUCKETS)]

    def add(self, item: int) -> None:
        """Add one 64-bit hash."""
        bucket = item >> 56
        buffer = self._buffers[bucket]
        buffer.append(item)
        if len(buffer) == BUFFER:
            self._flush(bucket)

    def count(self) -> int:
        """Return how many items repeat an earlier one, and remove the temporary files."""
        duplicates = 0
        for bucket in range(BUCKETS):
            self._flush(bucket)
            path = self._folder / f"{bucket:02x}"
            if path.exists():
                items = np.sort(np.fromfile(path, dtype=np.uint64))
                duplicates += int((items[1:] == items[:-1]).sum())
                path.unlink()
        self._folder.rmdir()
        return duplicates

    def _flush(self, bucket: int) -> None:
        if self._buffers[bucket]:
            with (self._folder / f"{bucket:02x}").open("ab") as file:
                self._buffers[bucket].tofile(file)
            self._buffers[bucket] = array("Q")
