"""The demo: its whole job in a short run, its judgement, and what it does when a step fails."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import commands

SCRIPT = commands.ROOT / "examples" / "demo" / "run.py"

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


def test_one_epoch_from_corpus_to_score(tmp_path: Path) -> None:
    """One epoch instead of four: not good yet, but every step has done its work."""
    result = run_demo("--out", tmp_path / "run", "--epochs", 1)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "run" / "result.json").read_text())
    assert figures["bleu"] > 30
    assert figures["signature"].startswith("nrefs:1|case:mixed")
    assert f"transformer_babn: BLEU {figures['bleu']:.1f}" in result.stdout
    assert f"AUROC {figures['auroc']['surprise']:.2f}" in result.stdout
    assert len((tmp_path / "run" / "translations.txt").read_text().splitlines()) == 500
    page = tmp_path / "run" / "report.html"
    assert f"for your browser: {page}" in result.stdout
    assert "<h2" in page.read_text()
    assert len(result.stdout.splitlines()) < 30  # a terminal screen


def test_a_failing_step_shows_its_log(tmp_path: Path) -> None:
    result = run_demo("--out", tmp_path / "run", "--arch", "transformer_magic")
    assert result.returncode == 1
    assert "invalid choice: 'transformer_magic'" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        f"run.py: error: step train failed; its whole log is in {tmp_path}/run/logs/train.log"
    )
    assert not (tmp_path / "run" / "result.json").exists()


def test_only_its_own_files_are_made_afresh(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(demo.DemoError, match="holds other files"):
        demo.prepare_folder(tmp_path)
    own = tmp_path / "run"
    demo.prepare_folder(own)
    (own / "result.json").write_text("{}")
    (own / "notes.txt").write_text("precious")
    demo.prepare_folder(own)
    assert not (own / "result.json").exists()
    assert (own / "notes.txt").read_text() == "precious"
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_every_right_translation_counts() -> None:
    records = [
        {"en": "at 2:30", "references": ["at half past two", "at 2:30"], "ambiguous": True},
        {"en": "May 3", "references": ["May 3", "3 May"], "ambiguous": True},
        {"en": "room 12", "references": ["room 12"], "ambiguous": False},
        {"en": "room 13", "references": ["room 13"], "ambiguous": False},
    ]
    score = demo.judge(records, ["at half past two", "May 4", "room 12", "room 13"])
    assert (score.share_ambiguous, score.share_unambiguous) == (0.5, 1.0)
    perfect = demo.judge(records, [record["en"] for record in records])
    assert perfect.bleu == pytest.approx(100)
    assert score.bleu < 100


def test_doubts_are_read_and_ranked() -> None:
    log = "U-1\t-4.0\t0.5\t0.1 0.2\nH-1\t-1\tx\nU-0\t-0.5\t0.7\t0.1\nU-2\t-3.0\t0.1\t0.1\n"
    doubts = uncertainty.read_doubts(log)
    assert [doubt.surprise for doubt in doubts] == [0.5, 4.0, 3.0]
    assert uncertainty.auroc(doubts, [False, True, True]) == {"surprise": 1.0, "spread": 0.0}
    records = [{"de": "x", "references": ["a"] * (1 + n), "ambiguous": n > 0} for n in range(3)]
    lines = uncertainty.describe(doubts, records, ["A", "B", "C"], shown=1)
    assert "100% are ambiguous, of all 67%" in lines[0]
    assert lines[1] == "   4.00 ± 0.50 bits  B"
    assert lines[-2] == "   0.50 ± 0.70 bits  A"


def test_plain_attention_is_not_sampled() -> None:
    assert demo.is_random("transformer_babn_iwslt_de_en")
    assert not demo.is_random("transformer_deterministic")
