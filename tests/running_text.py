"""What the tests of running text share: small stories, a script's call, its data as text again."""

from __future__ import annotations

import json
from pathlib import Path

from fairseq.data import Dictionary, data_utils


def story(number: int) -> list[str]:
    return [
        f"Dr. Smith has {number} cats. They sleep!",
        f"Nobody knows why. Cat {number} is the oldest.",
    ]


def as_text(stories: list[list[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in stories) + "\n"


def prepare(main, out: Path, *more: object, status: int = 0) -> Path:
    assert main([str(x) for x in ("--out", out, "--workers", 2, *more)]) == status
    return out


def rows(folder: Path, split: str = "train") -> list[str]:
    """The data as text again, by fairseq's dictionary; the </s> at the end of rows left out."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    found = [dictionary.string(row, include_eos=True) for row in data]
    assert all(row.endswith("</s>") for row in found)
    return [row.removesuffix("</s>").rstrip() for row in found]


def manifest(out: Path) -> dict:
    return json.loads((out / "manifest.json").read_text(encoding="utf-8"))


WORDS = ("--subwords", "none")
