"""ELECTRA on real text: 500 updates of a tiny model on a novel."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest

import runner

DATA = Path(os.environ.get("STOCHATTN_DATA", runner.ROOT.parent / "shared" / "data"))
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
    """A part of the novel, split into words, with a vocabulary of the frequent words.

    The last 1000 lines are the validation set.
    """
    text, out = tmp_path_factory.mktemp("novel-text"), tmp_path_factory.mktemp("novel")
    lines = TEXT.read_text(encoding="utf-8").lower().splitlines()[1000:31000]
    words = [" ".join(re.findall(r"\w+|[^\w\s]", line)) + "\n" for line in lines if line.strip()]
    for split, rows in (("train", words[:-1000]), ("valid", words[-1000:])):
        (text / split).write_text("".join(rows), encoding="utf-8")
    splits = ("--trainpref", text / "train", "--validpref", text / "valid")
    runner.preprocess("--only-source", *splits, "--nwordssrc", VOCABULARY, out=out)
    return out


def entropy(share: float) -> float:
    """The entropy H(share): the loss in bits per token of the best constant prediction."""
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def test_both_networks_learn(novel: Path, tmp_path: Path) -> None:
    """The generator beats a uniform guess by 2 bits, the discriminator a constant by 3 %."""
    task = ("--task", "electra", "--criterion", "electra", "--tokens-per-sample", 16)
    flags = (*TINY, *task, *SCHEDULE, "--max-tokens", 512, "--no-save")
    output = runner.train(novel, tmp_path, *flags)
    row = {name: float(value) for name, value in output.stats["valid"][-1].items()}
    constant = entropy(row["valid_replaced"] / 100)
    print(f"mlm {row['valid_mlm_loss']}, rtd {row['valid_rtd_loss']}, constant {constant:.4f} bits")
    mlm_losses = [float(r["mlm_loss"]) for r in output.stats["train_inner"]]
    assert mlm_losses == sorted(mlm_losses, reverse=True)
    assert row["valid_mlm_loss"] < math.log2(VOCABULARY) - 2
    assert row["valid_rtd_loss"] < 0.97 * constant
