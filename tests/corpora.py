"""Small corpora for tests and for the scripts in this folder: sentences and their reversals."""

from __future__ import annotations

import random
from pathlib import Path

import runner

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re") for b in ("ba", "do", "fi", "gu", "pe")]


def write_pairs(
    folder: Path, split: str, count: int, seed: int, shortest: int = 1, longest: int = 9
) -> None:
    """Write sentences, their reversal as the translation, and a label: the first two letters.

    The reversal cannot be learnt without attention.
    """
    rng = random.Random(seed)
    rows = [rng.choices(WORDS, k=rng.randint(shortest, longest)) for _ in range(count)]
    (folder / f"{split}.src").write_text("".join(" ".join(row) + "\n" for row in rows))
    (folder / f"{split}.tgt").write_text("".join(" ".join(row[::-1]) + "\n" for row in rows))
    (folder / f"{split}.label").write_text("".join(f"{row[0][:2]}\n" for row in rows))


def translation(folder: Path, count: int, shortest: int = 1, longest: int = 9) -> Path:
    """Make data for translation in the new folder ``folder``, with ``count`` training pairs."""
    folder.mkdir()
    for split, size, seed in (("train", count, 1), ("valid", 16, 2)):
        write_pairs(folder, split, size, seed, shortest, longest)
    splits = ("--trainpref", folder / "train", "--validpref", folder / "valid")
    out = folder / "data"
    runner.preprocess("-s", "src", "-t", "tgt", "--joined-dictionary", *splits, out=out)
    return out


def language_model(folder: Path, count: int) -> Path:
    """Make data for language models, also masked ones, in the new folder ``folder``."""
    folder.mkdir()
    for split, size, seed in (("train", count, 1), ("valid", 16, 2)):
        write_pairs(folder, split, size, seed)
        (folder / f"{split}.src").rename(folder / split)
    splits = ("--trainpref", folder / "train", "--validpref", folder / "valid")
    runner.preprocess("--only-source", *splits, out=folder / "data")
    return folder / "data"
