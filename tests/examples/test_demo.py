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
uncertainty = sys.modules["uncertainty"]


def run_demo(*args: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, args)], text=True, capture_output=True
    )


def test_all_steps_with_one_epoch(tmp_path: Path) -> None:
    """One epoch instead of four: the model is not good yet, but every step works."""
    result = run_demo("--out", tmp_path / "run", "--epochs", 1)
    assert result.returncode == 0, result.stdout + result.stderr
    scores = json.loads((tmp_path / "run" / "result.json").read_text())
    assert scores["bleu"] > 30
    assert scores["signature"].startswith("nrefs:1|case:mixed")
    assert f"transformer_babn: BLEU {scores['bleu']:.1f}" in result.stdout
    assert f"AUROC {scores['auroc']['surprise']:.2f}" in result.stdout
    assert len((tmp_path / "run" / "translations.txt").read_text().splitlines()) == 500
    page = tmp_path / "run" / "report.html"
    assert f"for your browser: {page}" in result.stdout
    assert "<h2" in page.read_text()
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
    with pytest.raises(demo.DemoError, match="contains other files"):
        demo.prepare_folder(tmp_path)
    own = tmp_path / "run"
    demo.prepare_folder(own)
    (own / "result.json").write_text("{}")
    (own / "notes.txt").write_text("precious")
    demo.prepare_folder(own)
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
    score = demo.score_translations(records, ["at half past two", "May 4", "room 12", "room 13"])
    assert (score.share_ambiguous, score.share_unambiguous) == (0.5, 1.0)
    perfect = demo.score_translations(records, [record["en"] for record in records])
    assert perfect.bleu == pytest.approx(100)
    assert score.bleu < 100


def test_translations_are_ranked_by_uncertainty() -> None:
    log = "U-1\t-4.0\t0.5\t0.1 0.2\nH-1\t-1\tx\nU-0\t-0.5\t0.7\t0.1\nU-2\t-3.0\t0.1\t0.1\n"
    rows = uncertainty.read_uncertainties(log)
    assert [row.surprise for row in rows] == [0.5, 4.0, 3.0]
    assert uncertainty.auroc(rows, [False, True, True]) == {"surprise": 1.0, "spread": 0.0}
    records = [{"de": "x", "references": ["a"] * (1 + n), "ambiguous": n > 0} for n in range(3)]
    lines = uncertainty.describe(rows, records, ["A", "B", "C"], shown=1)
    assert "100% of the least certain tenth are ambiguous, 67% of all" in lines[0]
    assert lines[1] == "   4.00 ± 0.50 bits  B"
    assert lines[-2] == "   0.50 ± 0.70 bits  A"


def test_plain_attention_is_not_sampled() -> None:
    assert demo.is_random("transformer_babn_iwslt_de_en")
    assert not demo.is_random("transformer_deterministic")
