"""For any input, readers of JSON, logs and flags succeed or fail with a one-line error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

import evaluated
from fairseq_stochattn.analysis import curves, report, report_evaluation
from fairseq_stochattn.analysis.calibration_plot import (
    out_of_domain_figure,
    reliability_figure,
    risk_coverage_figure,
)
from fairseq_stochattn.analysis.drawing import house_style
from fairseq_stochattn.analysis.evaluation_file import read_evaluation, with_part
from fairseq_stochattn.analysis.heads_report import (
    HeadReport,
    LayerReport,
    as_json,
    as_table,
    read_reports,
)
from fairseq_stochattn.analysis.loading import parse_overrides
from fairseq_stochattn.analysis.training_log import TrainingLog, read_log
from fairseq_stochattn.models.word_vectors import read_vectors
from mutations import cases, damaged, edited, json_files, json_text, one_line_or_success

DRAWN = 0.01  # share of the cases that are also drawn, which takes a tenth of a second each
EVALUATION = evaluated.evaluation()
LAYERS = [
    LayerReport("encoder", layer, f"encoder.layers.{layer}", 0.3 + layer, [0.1, -0.02 * layer])
    for layer in range(2)
]
HEADS = as_json(
    [HeadReport("a.pt", 7, "loss", "bits", 2.5, None, LAYERS)] * 2, 0.0, data="data-bin"
)
INNER = {"epoch": 1, "update": 0.5, "loss": "4.25", "mmd_encoder_0": "0.1", "num_updates": "10"}
ENDED = {"epoch": 1, "valid_loss": "3.5", "valid_best_loss": "3.5", "valid_num_updates": "10"}
PREFIX = b"2026-01-01 00:00:00 | INFO | train_inner | "
SIMPLE = (
    PREFIX + b"epoch 001:     10 / 20 loss=4.25, mmd_cross_1=0.2, lr=0.1, num_updates=10\n",
    b"epoch 001 | valid on 'valid' subset | loss 3.5 | ppl 11.3 | num_updates 10\n",
    b"epoch 001 | loss 3.5 | nll_loss 3.4 | num_updates 20\n",
)
JSON_LOG = [json_text(row) for row in (INNER, ENDED)]
VECTORS = b"2 3\nthe 0.1 0.2 0.3\ndog 1 -2e-1 nan\n"
OVERRIDES = {"data": "x", "dropout": 0.1, "layers": [1, 2], "model": {"arch": "y"}}


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return folder / "input"


@cases()
@given(content=json_files(EVALUATION))
def test_evaluation_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with one_line_or_success():
        evaluation = read_evaluation(path)
        for entry in with_part(evaluation, "least_certain"):
            report_evaluation.least_certain(entry).encode()
        for entry in evaluation["checkpoints"]:
            json.dumps(entry["metrics"], allow_nan=False)


@cases(DRAWN)
@given(content=json_files(EVALUATION))
def test_evaluation_that_is_read_can_be_drawn(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with house_style(), one_line_or_success():
        evaluation = read_evaluation(path)
        report_evaluation.metrics(evaluation).encode()
        for draw in (reliability_figure, risk_coverage_figure, out_of_domain_figure):
            draw(evaluation)


@cases()
@given(content=json_files(HEADS))
def test_heads_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with one_line_or_success():
        as_table(read_reports(path), 0.0).encode()


@cases(DRAWN)
@given(content=json_files(HEADS))
def test_heads_that_are_read_can_be_drawn(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with house_style(), one_line_or_success():
        report.head_importance(read_reports(path)).encode()


def logs() -> st.SearchStrategy[bytes]:
    """Logs of both formats with damaged lines."""
    rows = st.one_of(edited(INNER), edited(ENDED)).map(lambda row: PREFIX + json_text(row) + b"\n")
    texts = damaged(*SIMPLE, *JSON_LOG, b"".join(SIMPLE))
    return st.lists(st.one_of(rows, texts), min_size=1, max_size=3).map(b"".join)


def used(log: TrainingLog) -> None:
    """Read everything from a log that plots and reports show."""
    for part in log.parts:
        for name in log.names():
            series = log.series(part, name)
            assert series is None or len(series.updates) == len(series.values) > 0
    assert all(isinstance(x, int) for layers in log.layers().values() for x in layers)
    assert len(log.losses()) <= len(log.names())


@cases()
@given(content=logs())
def test_training_log(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with one_line_or_success():
        used(read_log([path]))


@cases(DRAWN)
@given(content=logs())
def test_training_log_that_is_read_can_be_drawn(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with house_style(), one_line_or_success():
        log = read_log([path])
        if log:
            report.training_curves(log).encode()
        curves.layers_figure(log, curves.choose_layers(log), "")


@cases()
@given(
    text=st.one_of(
        edited(OVERRIDES).map(repr),
        damaged(repr(OVERRIDES).encode()).map(lambda text: text.decode(errors="surrogateescape")),
        st.sampled_from(["(" * 9999, "{" * 300 + "}" * 300, "[" * 99999, "-" * 9999 + "1", "{1:"]),
    )
)
def test_model_overrides(text: str) -> None:
    with one_line_or_success():
        assert all(isinstance(name, str) for name in parse_overrides(text))


@cases()
@given(content=damaged(VECTORS, VECTORS[4:]))
def test_word_vectors(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    dictionary = Dictionary()
    for word in ("the", "dog"):
        dictionary.add_symbol(word)
    with one_line_or_success():
        for vector in read_vectors(path, dictionary.indices, 3).values():
            assert vector.shape == (3,)
            assert vector.isfinite().all()
