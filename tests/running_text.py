"""Helpers for tests of pretraining data: small documents, running a script, reading its output."""

from __future__ import annotations

import json
from pathlib import Path

from fairseq.data import Dictionary, data_utils


def story(number: int) -> list[str]:
    """Return the two lines of a small document."""
    return [
        f"Dr. Smith has {number} cats. They sleep!",
        f"Nobody knows why. Cat {number} is the oldest.",
    ]


def as_text(stories: list[list[str]]) -> str:
    """Return the text of several documents, separated by blank lines."""
    return "\n\n".join("\n".join(lines) for lines in stories) + "\n"


def prepare(main, out: Path, *more: object, status: int = 0) -> Path:
    """Run the ``main`` of a script, check its exit status, and return its output folder."""
    assert main([str(x) for x in ("--out", out, "--workers", 2, *more)]) == status
    return out


def rows(folder: Path, split: str = "train") -> list[str]:
    """Return the rows of binarised data as text, without the </s> at their end."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    found = [dictionary.string(row, include_eos=True) for row in data]
    assert all(row.endswith("</s>") for row in found)
    return [row.removesuffix("</s>").rstrip() for row in found]


def manifest(out: Path) -> dict:
    """Return the manifest of an output folder."""
    return json.loads((out / "manifest.json").read_text(encoding="utf-8"))


WORDS = ("--subwords", "none")
