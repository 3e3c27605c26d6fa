"""Shared fixtures: small corpora binarised by fairseq's own command."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "data-prep"), str(ROOT / "tests")]

import commands  # noqa: E402
import fairseq_stochattn  # noqa: E402, F401  (registers the archs in this process)
import toy_method  # noqa: E402, F401  (and a method of the tests' own, with its archs)

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re") for b in ("ba", "do", "fi", "gu", "pe")]


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Hugging Face's library, imported where a test asks for it: that takes seconds.

    It would import torchaudio, which need not fit the torch that is installed.
    """
    sys.modules.setdefault("torchaudio", None)
    return pytest.importorskip("transformers")


def _write_pairs(folder: Path, split: str, count: int, seed: int) -> None:
    """Source words and their reversal: small, but not learnable without attention."""
    rng = random.Random(seed)
    rows = [rng.choices(WORDS, k=rng.randint(1, 9)) for _ in range(count)]
    (folder / f"{split}.src").write_text("".join(" ".join(row) + "\n" for row in rows))
    (folder / f"{split}.tgt").write_text("".join(" ".join(row[::-1]) + "\n" for row in rows))
    (folder / f"{split}.label").write_text("".join(f"{row[0][:2]}\n" for row in rows))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for split, count, seed in (("train", 320, 1), ("valid", 40, 2), ("test", 40, 3)):
        _write_pairs(folder, split, count, seed)
    return folder


def _splits(text: Path) -> list[str]:
    names = (("train", "train"), ("valid", "valid"), ("test", "test"))
    return [arg for flag, name in names for arg in (f"--{flag}pref", str(text / name))]


@pytest.fixture(scope="session")
def translation_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("translation")
    commands.preprocess("-s", "src", "-t", "tgt", "--joined-dictionary", *_splits(text), out=out)
    return out


@pytest.fixture(scope="session")
def lm_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, out = tmp_path_factory.mktemp("lm-text"), tmp_path_factory.mktemp("lm")
    for split in ("train", "valid", "test"):
        (folder / split).write_text((text / f"{split}.src").read_text())
    commands.preprocess("--only-source", *_splits(folder), out=out)
    return out


@pytest.fixture(scope="session")
def classification_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, out = tmp_path_factory.mktemp("cls-text"), tmp_path_factory.mktemp("classification")
    for part, suffix in (("input0", "src"), ("label", "label")):
        for split in ("train", "valid"):
            (folder / f"{split}.{part}").write_text((text / f"{split}.{suffix}").read_text())
        commands.preprocess(
            "--only-source",
            "--trainpref",
            str(folder / f"train.{part}"),
            "--validpref",
            str(folder / f"valid.{part}"),
            out=out / part,
        )
    return out
