"""Duplicates within a split, and pairs of the held-out sets that the training data has too."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steps.duplicates import DuplicateCounter, fingerprint


@dataclass
class Overlap:
    """What was found: by split, and training pairs that were dropped for it."""

    duplicates: dict[str, int] = field(default_factory=dict)
    seen_in_train: dict[str, int] = field(default_factory=dict)
    dropped: int = 0


def parallel_lines(prefix: Path, languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The lines of PREFIX.de and PREFIX.en side by side, with their line feeds."""
    with contextlib.ExitStack() as stack:
        yield from zip(
            *(
                stack.enter_context(open(f"{prefix}.{lang}", encoding="utf-8"))
                for lang in languages
            ),
            strict=True,
        )


@contextlib.contextmanager
def writers(prefix: Path, languages: Sequence[str]) -> Iterator[list]:
    """PREFIX.de and PREFIX.en, open for writing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(open(f"{prefix}.{lang}", "w", encoding="utf-8"))
            for lang in languages
        ]


def write(files: Sequence, lines: Sequence[str]) -> None:
    for file, line in zip(files, lines, strict=True):
        file.write(line)


def check(folder: Path, splits: Sequence[str], languages: Sequence[str], drop: bool) -> Overlap:
    """Look through the text of all splits; with ``drop``, leaked pairs leave the training text.

    The held-out sets come first and are kept as hashes: they are small whatever the corpus is.
    """
    found = Overlap()
    held_out: dict[str, Counter[int]] = {}
    for split in splits:
        if split != "train":
            lines = parallel_lines(folder / split, languages)
            held_out[split] = Counter(fingerprint(*pair) for pair in lines)
            pairs = held_out[split]
            found.duplicates[split] = pairs.total() - len(pairs)
    leaked: set[int] = set()
    duplicates = DuplicateCounter(folder / "hashes")
    with writers(folder / "kept", languages) as files:
        for lines in parallel_lines(folder / "train", languages):
            pair = fingerprint(*lines)
            if any(pair in pairs for pairs in held_out.values()):
                leaked.add(pair)
                if drop:
                    found.dropped += 1
                    continue
            duplicates.add(pair)
            if drop:
                write(files, lines)
    for lang in languages:
        kept = folder / f"kept.{lang}"
        if drop:
            kept.replace(folder / f"train.{lang}")
        else:
            kept.unlink()
    found.duplicates["train"] = duplicates.count()
    for split, pairs in held_out.items():
        found.seen_in_train[split] = sum(n for pair, n in pairs.items() if pair in leaked)
    return found
