"""Repulsion makes heads point in different directions on real text, at the loss of plain training.

Dist alone would also grow if the heads only became longer, as under SVGD.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

import labelled
import prepare_glue
import runner
import sizes
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.heads import head_diversities, show_heads
from fairseq_stochattn.analysis.loading import DataSelection
from fairseq_stochattn.core.heads import find_heads

DATA = Path(os.environ.get("STOCHATTN_DATA", runner.ROOT.parent / "shared" / "data"))
OURS = ("--optimizer", "repulsive", "--repulsive-base", "adam")


class Found(NamedTuple):
    """Measures on the validation set, averaged over the layers."""

    loss: float
    head_cosine: float
    feature_cosine: float
    dist_over_norm: float


def measure(checkpoint: Path, data: Path) -> Found:
    evaluation = Evaluation.load(checkpoint, DataSelection(str(data), max_tokens=4000), cpu=True)
    groups = find_heads(show_heads(evaluation.model))
    layers = head_diversities(groups, evaluation.loss)
    means = (fmean(getattr(layer, name) for layer in layers) for name in Found._fields[1:])
    return Found(evaluation.loss(), *means)


def compare(data: Path, folder: Path, *flags: object) -> tuple[Found, Found]:
    """The measures of plain and of repulsive training from the same seed."""
    found = []
    for name, more in (("plain", ()), ("ours", OURS)):
        runner.train(data, folder / name, *flags, "--lr", 0.002, *more)
        found.append(measure(folder / name / "checkpoint_last.pt", data))
        print(name, {key: round(value, 4) for key, value in found[-1]._asdict().items()})
    return found[0], found[1]


@pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason=f"no Multi30k at {DATA}")
def test_heads_of_a_transformer(tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "data"
    text.mkdir()
    for split, count in (("train", 2000), ("val", 200)):
        for side in ("de", "en"):
            with gzip.open(
                DATA / "multi30k" / f"{split}.{side}.gz", "rt", encoding="utf-8"
            ) as rows:
                lines = [next(rows).lower() for _ in range(count)]
            (text / f"{split}.{side}").write_text("".join(lines), encoding="utf-8")
    runner.preprocess(
        *("-s", "de", "-t", "en", "--joined-dictionary", "--thresholdsrc", 5, "--thresholdtgt", 5),
        *("--trainpref", text / "train", "--validpref", text / "val"),
        out=out,
    )
    heads = ("--encoder-attention-heads", 4, "--decoder-attention-heads", 4)
    flags = ("--arch", "transformer", *sizes.TRANSFORMER, *heads, "--max-update", 150)
    plain, ours = compare(out, tmp_path, *flags, "--max-tokens", 800)
    assert ours.head_cosine < plain.head_cosine - 0.02
    assert ours.feature_cosine < plain.feature_cosine
    assert ours.dist_over_norm > plain.dist_over_norm + 0.005
    assert ours.loss < 1.01 * plain.loss


@pytest.mark.skipif(not (DATA / "glue" / "CoLA").is_dir(), reason=f"no CoLA at {DATA}")
def test_heads_of_the_self_attentive_classifier(tmp_path: Path) -> None:
    out = tmp_path / "data"
    arguments = ("--task", "CoLA", "--subwords", "none")
    assert labelled.run(prepare_glue, DATA / "glue", out, *arguments) == 0
    flags = (
        *("--arch", "self_attentive", "--task", "sentence_prediction", "--num-classes", 2),
        *("--criterion", "sentence_prediction", "--encoder-embed-dim", 32),
        *("--encoder-hidden-size", 32, "--encoder-attention-heads", 8, "--max-update", 150),
        *("--attention-hidden-size", 32, "--mlp-hidden-size", 64, "--batch-size", 64),
    )
    plain, ours = compare(out, tmp_path, *flags, "--max-tokens", 4000)
    assert ours.head_cosine < plain.head_cosine - 0.01
    assert ours.loss < 1.01 * plain.loss
