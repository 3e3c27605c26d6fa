"""SVGD increases the distance of heads (Dist) on real text, compared with plain training."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

import labelled
import prepare_glue
import runner
import sizes
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.heads import head_distances, show_heads
from fairseq_stochattn.analysis.loading import DataSelection
from fairseq_stochattn.core.heads import find_heads

DATA = Path(os.environ.get("STOCHATTN_DATA", runner.ROOT.parent / "shared" / "data"))
SVGD = ("--optimizer", "repulsive", "--repulsive-base", "adam", "--repulsive-rule", "svgd")


def dist(checkpoint: Path, data: Path) -> float:
    """Dist over the validation set, averaged over the layers."""
    evaluation = Evaluation.load(checkpoint, DataSelection(str(data), max_tokens=4000), cpu=True)
    groups = find_heads(show_heads(evaluation.model))
    found = head_distances(groups, evaluation.loss)
    return sum(found) / len(found)


def compare(data: Path, folder: Path, *flags: object) -> tuple[float, float]:
    """Dist of plain and of repulsive training from the same seed."""
    found = []
    for name, more in (("plain", ()), ("svgd", SVGD)):
        runner.train(data, folder / name, *flags, "--lr", 0.002, *more)
        found.append(dist(folder / name / "checkpoint_last.pt", data))
    print(f"Dist without repulsion {found[0]:.4f}, with SVGD {found[1]:.4f}")
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
    without, repelled = compare(out, tmp_path, *flags, "--max-tokens", 800)
    assert repelled > 1.2 * without


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
    without, repelled = compare(out, tmp_path, *flags, "--max-tokens", 4000)
    assert repelled > 1.5 * without
