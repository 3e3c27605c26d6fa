"""ELECTRA on real text: five hundred updates of a tiny pair of networks on a novel."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest

import commands

DATA = Path(os.environ.get("STOCHATTN_DATA", commands.ROOT.parent / "shared" / "data"))
TEXT = DATA / "lm" / "war-and-peace.train.txt"
VOCABULARY = 1000
TINY = (
    *("--arch", "electra_deterministic", "--encoder-layers", 2, "--encoder-embed-dim", 64),
    *("--encoder-ffn-embed-dim", 128, "--encoder-attention-heads", 4, "--embedding-dim", 32),
    *("--generator-size", 0.25, "--dropout", 0, "--attention-dropout", 0),
)
SCHEDULE = (
    *("--lr", 0.001, "--lr-scheduler", "polynomial_decay", "--warmup-updates", 50),
    *("--total-num-update", 500, "--max-update", 500, "--clip-norm", 1, "--log-interval", 100),
)

pytestmark = pytest.mark.skipif(not TEXT.is_file(), reason=f"no text at {TEXT}")


@pytest.fixture(scope="module")
def novel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its words, the frequent ones known; the end of the part that is read is for validation."""
    text, out = tmp_path_factory.mktemp("novel-text"), tmp_path_factory.mktemp("novel")
    lines = TEXT.read_text(encoding="utf-8").lower().splitlines()[1000:31000]
    words = [" ".join(re.findall(r"\w+|[^\w\s]", line)) + "\n" for line in lines if line.strip()]
    for split, rows in (("train", words[:-1000]), ("valid", words[-1000:])):
        (text / split).write_text("".join(rows), encoding="utf-8")
    splits = ("--trainpref", text / "train", "--validpref", text / "valid")
    commands.preprocess("--only-source", *splits, "--nwordssrc", VOCABULARY, out=out)
    return out


def entropy(share: float) -> float:
    """Bits a token of the best predictor that does not look."""
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def test_both_networks_learn(novel: Path, tmp_path: Path) -> None:
    """The generator guesses better than blindly, the discriminator beats a constant."""
    task = ("--task", "electra", "--criterion", "electra", "--tokens-per-sample", 16)
    flags = (*TINY, *task, *SCHEDULE, "--max-tokens", 512, "--no-save")
    output = commands.train(novel, tmp_path, *flags)
    row = {name: float(value) for name, value in output.stats["valid"][-1].items()}
    blind = entropy(row["valid_replaced"] / 100)
    print(f"mlm {row['valid_mlm_loss']}, rtd {row['valid_rtd_loss']}, constant {blind:.4f} bits")
    course = [float(r["mlm_loss"]) for r in output.stats["train_inner"]]
    assert course == sorted(course, reverse=True)
    assert row["valid_mlm_loss"] < math.log2(VOCABULARY) - 2
    assert row["valid_rtd_loss"] < 0.97 * blind
