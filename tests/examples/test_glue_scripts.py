"""examples/glue: submission files in GLUE's format, and the summary over seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "glue"))

import submission
import summary

import labelled
import prepare_glue

LABELS = {
    "SST-2": ("sentence\tlabel\na b\t1\nb\t0\n", "index\tsentence\n0\ta\n1\tb\n2\tb a\n"),
    "STS-B": (
        "index\tsentence1\tsentence2\tscore\n0\ta b\tb\t4.0\n1\ta\tb\t1.0\n",
        "index\tsentence1\tsentence2\n0\ta\tb\n1\tb\ta\n2\ta\ta\n",
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\ta b\tb\tentailment\n1\ta\tb\tnot_entailment\n",
        "index\tsentence1\tsentence2\n0\ta\tb\n1\tb\ta\n2\ta\ta\n",
    ),
}
PREDICTIONS = {
    "SST-2": (["1", "0", "1"], ["1", "0", "1"]),
    "STS-B": ([0.5, 1.2, -0.1], ["2.500", "5.000", "0.000"]),
    "RTE": (["entailment", "not_entailment", "entailment"],) * 2,
}


def prepared(task: str, folder: Path) -> Path:
    """Data of a task with a test set of three examples."""
    train, test = LABELS[task]
    files = {f"{task}/{name}.tsv": train for name in ("train", "dev")}
    origin = labelled.write(folder / "from", {**files, f"{task}/test.tsv": test})
    words = ("--task", task, "--subwords", "none")
    assert labelled.run(prepare_glue, origin, folder / "data", *words) == 0
    return folder / "data"


def write_predictions(path: Path, values: list) -> Path:
    rows = ({"id": n, "prediction": value} for n, value in enumerate(values))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("task", LABELS)
def test_submissions_have_glues_format(task: str, tmp_path: Path) -> None:
    data = prepared(task, tmp_path)
    values, expected = PREDICTIONS[task]
    file = write_predictions(tmp_path / "p.jsonl", values)
    assert submission.main([str(x) for x in (data, task, file, tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / f"{task}.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{n}\t{row}" for n, row in enumerate(expected))]


def test_incomplete_predictions_are_refused(tmp_path: Path) -> None:
    data = prepared("SST-2", tmp_path)
    file = write_predictions(tmp_path / "p.jsonl", ["1", "0"])
    with pytest.raises(SystemExit, match="2 predictions for 3 examples"):
        submission.main([str(x) for x in (data, "SST-2", file, tmp_path / "out")])


def test_names_of_files() -> None:
    assert submission.file_name("MNLI", "test") == "MNLI-m.tsv"
    assert submission.file_name("MNLI", "test1") == "MNLI-mm.tsv"
    assert submission.file_name("RTE", "test") == "RTE.tsv"


def test_mean_and_standard_deviation(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = []
    for n, accuracy in enumerate((80.0, 82.0, 84.0)):
        paths.append(tmp_path / f"{n}.txt")
        paths[-1].write_text(f"subset\tvalid\nexamples\t40\naccuracy\t{accuracy}\n")
    assert summary.main([str(path) for path in paths]) == 0
    assert capsys.readouterr().out == "accuracy\t82.00 ± 2.00\t(80.0, 82.0, 84.0)\n"
