"""Shared fixtures: small corpora in fairseq's binary format, and models trained on them."""

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

import fairseq_stochattn.models  # noqa: E402, F401  (registers the archs in this process)
import labelled  # noqa: E402
import prepare_conll2003  # noqa: E402
import prepare_swag  # noqa: E402
import runner  # noqa: E402
import sizes  # noqa: E402
import toy_method  # noqa: E402, F401  (registers a method for tests)
import zoo  # noqa: E402
from corpora import WORDS, write_pairs  # noqa: E402


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Return Hugging Face's library, imported on demand because that takes seconds."""
    # It would import torchaudio, which may not fit the installed torch.
    sys.modules.setdefault("torchaudio", None)
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the texts of all splits: .src, .tgt and .label."""
    folder = tmp_path_factory.mktemp("text")
    for split, count, seed in (("train", 320, 1), ("valid", 40, 2), ("test", 40, 3)):
        write_pairs(folder, split, count, seed)
    return folder


def _splits(text: Path) -> list[str]:
    """Return the flags of fairseq-preprocess for all splits of a folder."""
    names = ("train", "valid", "test")
    return [arg for name in names for arg in (f"--{name}pref", str(text / name))]


@pytest.fixture(scope="session")
def novel() -> list[Tensor]:
    """Return some hundred lines of a novel as characters; only the 45 most frequent are known."""
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
    """Return data for translation: a sentence into its reversal."""
    out = tmp_path_factory.mktemp("translation")
    runner.preprocess("-s", "src", "-t", "tgt", "--joined-dictionary", *_splits(text), out=out)
    return out


@pytest.fixture(scope="session")
def lm_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return data for language models, also masked ones."""
    folder, out = tmp_path_factory.mktemp("lm-text"), tmp_path_factory.mktemp("lm")
    for split in ("train", "valid", "test"):
        (folder / split).write_text((text / f"{split}.src").read_text())
    runner.preprocess("--only-source", *_splits(folder), out=out)
    return out


TAGS = {"k": "B-PER", "l": "B-LOC", "m": "B-ORG", "n": "B-MISC", "r": "O"}


@pytest.fixture(scope="session")
def tagging_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return data for tagging, in subwords; the first letter of a word decides its tag."""
    folder, out = tmp_path_factory.mktemp("tags-text"), tmp_path_factory.mktemp("tags") / "data"
    for split in ("train", "valid", "test"):
        lines = (text / f"{split}.src").read_text().splitlines()
        sentences = ("".join(f"{w} {TAGS[w[0]]}\n" for w in line.split()) for line in lines)
        (folder / f"{split}.txt").write_text("\n".join(sentences))
    assert labelled.run(prepare_conll2003, folder, out, "--size", 38) == 0
    return out


@pytest.fixture(scope="session")
def choice_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return data for multiple choice: which of four words is the first of the context?

    The test set has no labels.
    """
    folder, out = tmp_path_factory.mktemp("choice-text"), tmp_path_factory.mktemp("choice") / "data"
    head = "startphrase,ending0,ending1,ending2,ending3"
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        rng = random.Random(split)
        rows = []
        for line in (text / f"{split}.src").read_text().splitlines():
            first = line.split()[0]
            options = [first, *rng.sample([word for word in WORDS if word != first], 3)]
            rng.shuffle(options)
            label = "" if split == "test" else f",{options.index(first)}"
            rows.append(",".join([line, *options]) + label)
        label = "" if split == "test" else ",label"
        (folder / f"{name}.csv").write_text("\n".join([head + label, *rows, ""]))
    assert labelled.run(prepare_swag, folder, out, "--subwords", "none") == 0
    return out


@pytest.fixture(scope="session")
def classification_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return data for classification: the label is the first two letters of the sentence."""
    folder, out = tmp_path_factory.mktemp("cls-text"), tmp_path_factory.mktemp("classification")
    for part, suffix in (("input0", "src"), ("label", "label")):
        for split in ("train", "valid"):
            (folder / f"{split}.{part}").write_text((text / f"{split}.{suffix}").read_text())
        runner.preprocess(
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
    """Return data for regression: the score is the length; the test set has no scores."""
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
    """Train a model with BABN attention that learns the tags; return its checkpoint."""
    flags = ("--arch", "roberta_babn", *sizes.ROBERTA, *sizes.TAGGING, "--criterion", "elbo")
    return _learnt(tagging_data, tmp_path_factory.mktemp("tagger"), *flags, "--max-update", 80)


@pytest.fixture(scope="session")
def chooser_checkpoint(choice_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model with plain attention that learns the choices; return its checkpoint."""
    flags = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.CHOICE)
    flags = (*flags, "--criterion", "attention_losses", "--lr", 0.005, "--batch-size", 32)
    return _learnt(choice_data, tmp_path_factory.mktemp("chooser"), *flags, "--max-update", 120)


def _learnt(data: Path, save: Path, *flags: object) -> Path:
    """Train without dropout and return the checkpoint."""
    no_dropout = ("--dropout", 0, "--attention-dropout", 0, "--validate-interval", 10)
    size = ("--lr", 0.01, "--batch-size", 64, "--max-tokens", 4000)
    runner.train(data, save, *size, *no_dropout, *flags)
    return save / "checkpoint_last.pt"
