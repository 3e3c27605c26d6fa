"""Graph to text through the commands: train with every method, generate, score, evaluate."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest

import graph_texts
import runner
from bad_input import refusal
from evaluating import evaluate
from fairseq_stochattn.commands import plot, score_text
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.graph_text_file import read_graph_texts
from fairseq_stochattn.core.method import METHODS

FLAGS = (
    *("--task", "graph_to_text", "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16),
    *("--encoder-attention-heads", 2, "--decoder-attention-heads", 2, "--encoder-layers", 2),
    *("--lr", 0.01, "--batch-size", 8, "--max-tokens", 2000, "--disable-validation"),
)
CRITERIONS = {"asa": "asa", "attendout": "attendout", "alignment": "alignment"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph_texts.write(tmp_path_factory.mktemp("graphs") / "data")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random attention, trained for some updates."""
    out = tmp_path_factory.mktemp("model")
    flags = ("--arch", "graph_writer_bam", "--criterion", "elbo", "--max-update", 30)
    losses = train(data, out, *flags)
    assert losses[-1] < losses[0]
    return out / "checkpoint_last.pt"


def train(data: Path, out: Path, *flags: object) -> list[float]:
    return runner.train(data, out, *FLAGS, *flags).losses("train_inner")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(data: Path, tmp_path: Path, method: str) -> None:
    criterion = CRITERIONS.get(method, "elbo")
    more = ("--alignment", "ct") if method == "alignment" else ()
    flags = ("--arch", f"graph_writer_{method}", "--criterion", criterion, "--no-save", *more)
    losses = train(data, tmp_path, *flags, "--max-update", 3)
    assert losses
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize(
    "flags",
    [
        ("--optimizer", "repulsive", "--repulsive-base", "adam", "--repulsive-rule", "svgd"),
        ("--optimizer", "repulsive", "--repulsive-base", "adam", "--repulsive-strength", 50),
        ("--criterion", "head_diversity"),
        ("--criterion", "head_diversity", "--diversity", "disagreement"),
    ],
    ids=["svgd", "directions", "cosine", "disagreement"],
)
def test_diverse_heads_act_on_it_unchanged(data: Path, tmp_path: Path, flags: tuple) -> None:
    plain = ("--arch", "graph_writer_deterministic", "--max-update", 3, "--no-save")
    criterion = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1)
    before = train(data, tmp_path / "plain", *plain, *criterion)
    after = train(data, tmp_path / "diverse", *plain, *criterion, *flags)
    assert all(map(math.isfinite, after))
    assert after[-1] != before[-1]


def test_texts_are_generated_and_scored(
    data: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = ("--task", "graph_to_text", "--gen-subset", "test", "--beam", 3, "--max-len-b", 12)
    generated = tmp_path / "generated.txt"
    generated.write_text(runner.generate(data, trained, *options).text)
    out, scores = tmp_path / "texts.txt", tmp_path / "scores.json"
    flags = ("--generated", generated, "--output", out, "--json", scores)
    assert score_text.main([str(x) for x in (data, *flags)]) == 0
    assert "texts\t8" in capsys.readouterr().out
    texts = out.read_text().splitlines()
    assert len(texts) == 8
    assert not any("<entity_" in text for text in texts)
    found = json.loads(scores.read_text())
    assert {"bleu1", "bleu2", "bleu3", "bleu4", "rougeL", "coverage"} <= set(found)
    assert all(0 <= value <= 100 for value in found.values())


def test_uncertainty_is_measured(data: Path, trained: Path) -> None:
    found = evaluate(data, trained, more=("--gen-subset", "test", "--samples", 3))
    (model,) = found["checkpoints"]
    assert model["samples"] == 3
    assert model["metrics"]["mutual_information"] > 0
    assert "bleu" not in model["metrics"]  # stochattn-score-text has it


def test_attention_over_nodes_is_not_drawn_as_words(data: Path, trained: Path) -> None:
    flags = ("attention", trained, data, "--id", 0, "--cpu", "--output", trained.parent / "x.png")
    assert "it reads nodes" in refusal(plot.main, *flags)


def test_data_that_does_not_fit_is_one_line(data: Path, tmp_path: Path) -> None:
    lines = (data / "train.jsonl").read_text().splitlines()
    row, path = json.loads(lines[2]), tmp_path / "broken.jsonl"
    for change, message in (
        ({"triples": [[0, "likes", 9]]}, "line 1 has a triple of an entity that is missing"),
        ({"triples": [["0", "likes", 1]]}, "has a triple that is not [number"),
        ({"types": []}, "entities but 0 types"),
        ({"text": None}, "has a 'text' or 'title'"),
        ({"references": "w1"}, "has no list of texts 'references'"),
        ({"entities": ["\ud800"], "types": ["<agent>"]}, "line 1 has half a character"),
    ):
        path.write_text(json.dumps({**row, **change}) + "\n")
        with pytest.raises(InputError, match=re.escape(message)):
            list(read_graph_texts(path))
    folder = shutil.copytree(data, tmp_path / "data")
    many = {"entities": ["w1"] * 6, "types": ["<agent>"] * 6}
    (folder / "train.jsonl").write_text(json.dumps({**row, **many}) + "\n")
    with pytest.raises(SystemExit) as error:
        train(folder, tmp_path, "--arch", "graph_writer")
    assert "line 1 has 6 entities, but dict.text.txt has symbols for 5" in str(error.value)
    assert "\n" not in str(error.value)


def test_scoring_refuses_the_output_of_another_split(data: Path, tmp_path: Path) -> None:
    generated = tmp_path / "generated.txt"
    flags = (data, "--generated", generated)
    generated.write_text("nothing")
    assert "is not the output of fairseq-generate" in refusal(score_text.main, *flags)
    generated.write_text("H-0\t-1.0\tw1\n")
    assert "no text for graph 1" in refusal(score_text.main, *flags)
    generated.write_text("".join(f"H-{i}\t-1.0\tw1\n" for i in range(9)))
    assert "it is of another split" in refusal(score_text.main, *flags)
    assert "does not exist" in refusal(score_text.main, *flags, "--gen-subset", "dev")
