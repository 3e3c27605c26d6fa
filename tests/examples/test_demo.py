"""The demo: a short run of all steps, the scores, and the behaviour if a step fails."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import runner

SCRIPT = runner.ROOT / "examples" / "demo" / "run.py"

sys.path.insert(0, str(SCRIPT.parent))
_spec = importlib.util.spec_from_file_location("demo_run", SCRIPT)
demo = importlib.util.module_from_spec(_spec)
sys.modules["demo_run"] = demo
_spec.loader.exec_module(demo)
comparison = sys.modules["compare_models"]
folder = sys.modules["folder"]


def run_demo(*args: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, args)], text=True, capture_output=True
    )


def test_all_steps_with_one_epoch(tmp_path: Path) -> None:
    """One epoch instead of four: the model is not good yet, but every step works."""
    result = run_demo("--out", tmp_path / "run", "--epochs", 1)
    assert result.returncode == 0, result.stdout + result.stderr
    models = json.loads((tmp_path / "run" / "result.json").read_text())["models"]
    assert list(models) == ["transformer_babn", "plain attention", "plain attention, MC dropout"]
    babn, plain, dropout = models.values()
    assert min(babn["bleu"], plain["bleu"]) > 30
    assert babn["signature"].startswith("nrefs:1|case:mixed")
    for scores in (babn, dropout):
        assert scores["mutual_information_share"] > 0.01
        assert f"{scores['mutual_information_ambiguous']:.4f}" in result.stdout
    assert plain["mutual_information_share"] is None
    assert f"{babn['entropy_auroc']:.2f}" in result.stdout
    assert len((tmp_path / "run" / "translations.txt").read_text().splitlines()) == 500
    page = tmp_path / "run" / "report.html"
    assert f"for your browser: {page}" in result.stdout
    for text in ("<h2", "<mark>", "plain attention, MC dropout", "mutual information ambiguous"):
        assert text in page.read_text()
    assert len(result.stdout.splitlines()) < 30  # a terminal screen


def test_the_log_of_a_failed_step_is_printed(tmp_path: Path) -> None:
    result = run_demo("--out", tmp_path / "run", "--arch", "transformer_magic")
    assert result.returncode == 1
    assert "invalid choice: 'transformer_magic'" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        f"run.py: error: step train failed; its whole log is in {tmp_path}/run/logs/train.log"
    )
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_new_run_removes_only_files_of_the_demo(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(folder.DemoError, match="contains other files"):
        folder.prepare_folder(tmp_path)
    own = tmp_path / "run"
    folder.prepare_folder(own)
    (own / "result.json").write_text("{}")
    (own / "notes.txt").write_text("precious")
    folder.prepare_folder(own)
    assert not (own / "result.json").exists()
    assert (own / "notes.txt").read_text() == "precious"
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_every_correct_translation_counts() -> None:
    records = [
        {"en": "at 2:30", "references": ["at half past two", "at 2:30"], "ambiguous": True},
        {"en": "May 3", "references": ["May 3", "3 May"], "ambiguous": True},
        {"en": "room 12", "references": ["room 12"], "ambiguous": False},
        {"en": "room 13", "references": ["room 13"], "ambiguous": False},
    ]
    score = comparison.score_translations(
        records, ["at half past two", "May 4", "room 12", "room 13"]
    )
    assert (score.share_ambiguous, score.share_unambiguous) == (0.5, 1.0)
    perfect = comparison.score_translations(records, [record["en"] for record in records])
    assert perfect.bleu == pytest.approx(100)
    assert score.bleu < 100


def test_uncertainty_is_compared_per_token() -> None:
    records = [
        {"en": "a", "references": ["a"] * (1 + n % 2), "ambiguous": n % 2 == 1} for n in range(4)
    ]
    examples = {
        "id": [0, 1, 2, 3],
        "predictions": [1, 2, 1, 4],
        "entropy": [1.0, 4.0, 3.0, 8.0],  # per token: 1, 2, 3, 2
        "mutual_information": [0.1, 0.8, 0.2, 1.2],  # per token: 0.1, 0.4, 0.2, 0.3
    }
    model = {"name": "m", "samples": 20, "per_example": examples, "metrics": {}}
    (row,) = comparison.compare({"checkpoints": [model]}, records).values()
    assert (row.entropy_unambiguous, row.entropy_ambiguous) == (2.0, 2.0)
    assert row.mutual_information_ambiguous == pytest.approx(0.35)
    assert row.mutual_information_unambiguous == pytest.approx(0.15)
    assert (row.entropy_auroc, row.mutual_information_auroc) == (0.5, 1.0)
    assert row.mutual_information_share == pytest.approx(2.3 / 16)
    assert row.bleu is None
    (row,) = comparison.compare({"checkpoints": [{**model, "samples": 0}]}, records).values()
    assert row.mutual_information_share is row.mutual_information_auroc is None
    assert comparison.table({"m": row})[2].split()[-1] == "–"


def test_marked_words_are_shown() -> None:
    words = [{"word": "halb", "varies": True}, {"word": "drei", "varies": False}]
    example = {"text": "halb drei → at [?]", "words": words, "prediction": "2", "target": "half"}
    example |= {"confidence": 0.4, "mutual_information": 0.125}
    lines = comparison.describe({"name": "m", "least_certain": [example]})
    assert lines[1] == "  *halb* drei → at [?]"
    assert lines[2] == "    2 (40%, mutual information 0.12 bits), reference: half"
