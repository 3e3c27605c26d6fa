"""Find duplicates within a split, and validation and test examples that are also in train."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from steps.duplicates import DuplicateCounter, fingerprint


@dataclass
class Overlap:
    """The numbers of duplicates, of examples that are also in train, and of dropped examples."""

    duplicates: dict[str, int] = field(default_factory=dict)
    seen_in_train: dict[str, int] = field(default_factory=dict)
    dropped: int = 0


def parallel_lines(prefix: Path, suffixes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of PREFIX.de and PREFIX.en in parallel, with their line feeds."""
    with contextlib.ExitStack() as stack:
        yield from zip(
            *(
                stack.enter_context(open(f"{prefix}.{suffix}", encoding="utf-8"))
                for suffix in suffixes
            ),
            strict=True,
        )


@contextlib.contextmanager
def open_writers(prefix: Path, suffixes: Sequence[str]) -> Iterator[list[TextIO]]:
    """Open PREFIX.de and PREFIX.en for writing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(open(f"{prefix}.{suffix}", "w", encoding="utf-8"))
            for suffix in suffixes
        ]


def write_lines(files: Sequence[TextIO], lines: Sequence[str]) -> None:
    """Write one line to each file."""
    for file, line in zip(files, lines, strict=True):
        file.write(line)


def find_overlap(
    folder: Path, splits: Sequence[str], suffixes: Sequence[str], drop: bool
) -> Overlap:
    """Count duplicates and overlap in the text files SPLIT.SUFFIX of a folder.

    Overlap means validation and test examples that are also in train. With ``drop``, such examples
    are removed from the training files. The validation and test sets are small, so their hashes are
    kept in memory.
    """
    overlap = Overlap()
    held_out: dict[str, Counter[int]] = {}
    for split in splits:
        if split != "train":
            lines = parallel_lines(folder / split, suffixes)
            held_out[split] = Counter(fingerprint(*example) for example in lines)
            hashes = held_out[split]
            overlap.duplicates[split] = hashes.total() - len(hashes)
    leaked: set[int] = set()
    duplicates = DuplicateCounter(folder / "hashes")
    with open_writers(folder / "kept", suffixes) as files:
        for lines in parallel_lines(folder / "train", suffixes):
            key = fingerprint(*lines)
            if any(key in hashes for hashes in held_out.values()):
                leaked.add(key)
                if drop:
                    overlap.dropped += 1
                    continue
            duplicates.add(key)
            if drop:
                write_lines(files, lines)
    for suffix in suffixes:
        kept = folder / f"kept.{suffix}"
        if drop:
            kept.replace(folder / f"train.{suffix}")
        else:
            kept.unlink()
    overlap.duplicates["train"] = duplicates.count()
    for split, hashes in held_out.items():
        overlap.seen_in_train[split] = sum(n for key, n in hashes.items() if key in leaked)
    return overlap
