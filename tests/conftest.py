"""Shared fixtures: small corpora binarised by fairseq's own command."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "data-prep"), str(ROOT / "tests")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import commands  # noqa: E402
import fairseq_stochattn  # noqa: E402, F401  (registers the archs in this process)
import labelled  # noqa: E402
import prepare_conll2003  # noqa: E402
import prepare_swag  # noqa: E402
import sizes  # noqa: E402
import toy_method  # noqa: E402, F401  (and a method of the tests' own, with its archs)
import zoo  # noqa: E402

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
def novel() -> list[Tensor]:
    """Some hundred lines of a novel as characters, the 45 most frequent of them known."""
    data = Path(os.environ.get("STOCHATTN_DATA", ROOT.parent / "shared" / "data"))
    source = data / "lm" / "war-and-peace.train.txt"
    if not source.is_file():
        pytest.skip(f"no text at {source}")
    text = source.read_text(encoding="utf-8")[:40000].lower()
    known = {c: 4 + n for n, (c, _) in enumerate(Counter(text).most_common(45))}
    rows = [line[:32] for line in text.split("\n") if len(line) > 12]
    return [torch.tensor([*(known.get(c, 3) for c in row), zoo.EOS]) for row in rows]


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


TAGS = {"k": "B-PER", "l": "B-LOC", "m": "B-ORG", "n": "B-MISC", "r": "O"}


@pytest.fixture(scope="session")
def tagging_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of the corpus, the tag of a word decided by its first letter; in subwords."""
    folder, out = tmp_path_factory.mktemp("tags-text"), tmp_path_factory.mktemp("tags") / "data"
    for split in ("train", "valid", "test"):
        lines = (text / f"{split}.src").read_text().splitlines()
        sentences = ("".join(f"{w} {TAGS[w[0]]}\n" for w in line.split()) for line in lines)
        (folder / f"{split}.txt").write_text("\n".join(sentences))
    assert labelled.run(prepare_conll2003, folder, out, "--size", 38) == 0
    return out


@pytest.fixture(scope="session")
def choice_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which of three words is the first of the context? The test set has no labels."""
    folder, out = tmp_path_factory.mktemp("choice-text"), tmp_path_factory.mktemp("choice") / "data"
    head = "startphrase,ending0,ending1,ending2,ending3"
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        rng = random.Random(split)
        rows = []
        for line in (text / f"{split}.src").read_text().splitlines():
            right = line.split()[0]
            options = [right, *rng.sample([word for word in WORDS if word != right], 3)]
            rng.shuffle(options)
            label = "" if split == "test" else f",{options.index(right)}"
            rows.append(",".join([line, *options]) + label)
        label = "" if split == "test" else ",label"
        (folder / f"{name}.csv").write_text("\n".join([head + label, *rows, ""]))
    assert labelled.run(prepare_swag, folder, out, "--subwords", "none") == 0
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


@pytest.fixture(scope="session")
def regression_data(
    text: Path, classification_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The score of a sentence is its length; the test set has none."""
    out = tmp_path_factory.mktemp("regression")
    shutil.copytree(classification_data / "input0", out / "input0")
    (out / "label").mkdir()
    for split in ("train", "valid"):
        scores = [
            len(line.split()) / 9 for line in (text / f"{split}.src").read_text().splitlines()
        ]
        (out / "label" / f"{split}.label").write_text("".join(f"{x:.4f}\n" for x in scores))
    for end in ("bin", "idx"):
        shutil.copy(out / "input0" / f"valid.{end}", out / "input0" / f"test.{end}")
    return out


@pytest.fixture(scope="session")
def tagger_checkpoint(tagging_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bayesian attention that has learnt the tags."""
    flags = ("--arch", "roberta_babn", *sizes.ROBERTA, *sizes.TAGGING, "--criterion", "elbo")
    return _learnt(tagging_data, tmp_path_factory.mktemp("tagger"), *flags, "--max-update", 80)


@pytest.fixture(scope="session")
def chooser_checkpoint(choice_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain attention that has learnt the choices."""
    flags = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.CHOICE)
    flags = (*flags, "--criterion", "attention_losses", "--lr", 0.005, "--batch-size", 32)
    return _learnt(choice_data, tmp_path_factory.mktemp("chooser"), *flags, "--max-update", 120)


def _learnt(data: Path, save: Path, *flags: object) -> Path:
    still = ("--dropout", 0, "--attention-dropout", 0, "--validate-interval", 10)
    size = ("--lr", 0.01, "--batch-size", 64, "--max-tokens", 4000)
    commands.train(data, save, *size, *still, *flags)
    return save / "checkpoint_last.pt"
