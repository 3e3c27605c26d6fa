"""The pages of the evidence: tables, bold differences, remarks, and what --check reports."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats

import evidence_results as synthetic
from evidence_results import SEEDS, Project, measures

layout = __import__("layout")

MEANS = "Mean ± standard deviation over seeds"
DIFFERENCES = "Difference to plain, with its 95 % interval"
BOOTSTRAP = "Paired bootstrap of BLEU against plain, seed by seed"
MEASURES = {  # name → digits, scale, words for a positive and a negative difference
    "bleu": (2, 1, "better", "worse"),
    "ece": (3, 100, "worse", "better"),
    "spread": (4, 1, "higher", "lower"),
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Five seeds of plain and Alpha, three of Beta; Gamma has not run."""
    project = Project.create(tmp_path)
    project.add_all("plain", SEEDS, lambda seed: measures(0, seed))
    project.add_all("alpha", SEEDS, lambda seed: measures(0.6, seed))
    project.add_all("beta", SEEDS[:3], lambda seed: measures(0.1, seed))
    return project


def minus(text: str) -> str:
    return text.replace("-", "−")


def expected_cell(project: Project, method: str, measure: str) -> str:
    """Return the cell of a difference, computed with scipy."""
    digits, scale, positive, negative = MEASURES[measure]
    own = scale * np.array(project.by_seed(method, measure))
    base = scale * np.array(project.by_seed("plain", measure))[: len(own)]
    interval = stats.ttest_rel(own, base).confidence_interval(0.95)
    mean = (own - base).mean()
    text = f"{mean:+.{digits}f} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"
    if interval.low <= 0 <= interval.high:
        return minus(text)
    return minus(f"**{text}** {positive if mean > 0 else negative}")


def test_every_difference_is_that_of_scipy_and_bold_if_its_interval_excludes_zero(
    project: Project,
) -> None:
    assert project.run() == 0
    rows = project.rows(DIFFERENCES)
    cells = [cell for method in ("Alpha", "Beta") for cell in rows[method][1:]]
    expected = [expected_cell(project, m, name) for m in ("alpha", "beta") for name in MEASURES]
    assert cells == expected
    words = {word for cell in cells if cell.startswith("**") for word in cell.split()[-1:]}
    assert words == {"better", "higher"}  # so both bold and plain cells were compared
    assert any(not cell.startswith("**") for cell in cells)


@pytest.mark.parametrize(("level", "word"), [(0.9, "better"), (-0.9, "worse")])
def test_the_word_beside_a_bold_difference(tmp_path: Path, level: float, word: str) -> None:
    """Higher BLEU and lower ECE are better."""
    project = Project.create(tmp_path)
    project.add_all("plain", SEEDS, lambda seed: measures(0, seed))
    project.add_all("gamma", SEEDS, lambda seed: measures(level, seed))
    project.run()
    bleu, ece = project.rows(DIFFERENCES)["Gamma"][1:3]
    assert bleu.endswith(f"** {word}")
    assert ece.endswith(f"** {word}")


def test_means_and_numbers_of_seeds(project: Project) -> None:
    project.run()
    rows = project.rows(MEANS)
    assert rows[""] == ["seeds", "BLEU ↑", "ECE, % ↓", "spread"]
    values = np.array(project.by_seed("alpha", "bleu"))
    assert rows["Alpha"][:2] == ["5", f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"]
    percent = 100 * np.array(project.by_seed("beta", "ece"))
    assert rows["Beta"][0] == "3 of 5 seeds"
    assert rows["Beta"][2] == f"{percent.mean():.3f} ± {percent.std(ddof=1):.3f}"
    assert rows["Gamma"] == ["not run yet", "–", "–", "–"]
    assert list(rows) == ["", "plain", "Alpha", "Beta", "Gamma"]


def test_a_table_from_fewer_seeds_says_so(project: Project) -> None:
    project.add_all("gamma", (2, 4), lambda seed: measures(3, seed))
    project.run()
    page = project.page()
    assert project.rows(DIFFERENCES)["Beta"][0] == "3 of 5 seeds"
    assert project.rows(DIFFERENCES)["Gamma"] == ["2 of 5 seeds", "–", "–", "–"]
    assert "- Beta: 3 of 5 seeds; missing: 4, 5." in page
    assert "- Gamma: 2 of 5 seeds; missing: 1, 3, 5." in page
    assert "- Gamma: no interval for BLEU, ECE, %, spread, because fewer than 3 seeds" in page
    assert "- Beta: shares models." in page
    alpha, gamma = (line for line in project.readme().splitlines() if line.startswith("| [Small"))
    assert "| 5 | 1.00 |" in alpha
    assert "| – | 2 of 5 seeds |" in gamma


def test_values_that_are_not_finite_are_left_out_and_remarked(project: Project) -> None:
    project.add("alpha", 2, {**measures(0.6, 2), "ece": math.nan})
    project.add("alpha", 3, {**measures(0.6, 3), "bleu": None})
    project.add("beta", 1, {"bleu": 30.0, "ece": 0.05})
    project.run()
    page = project.page()
    kept = [project.by_seed("alpha", "ece")[seed - 1] for seed in (1, 3, 4, 5)]
    text = f"{100 * np.mean(kept):.3f} ± {100 * np.std(kept, ddof=1):.3f} (4 of 5)"
    assert project.rows(MEANS)["Alpha"][2] == text
    assert project.rows(DIFFERENCES)["Alpha"][2].endswith("(4 of 5)")
    assert "- `alpha-seed2.json`: ECE, % is not a finite number and is left out." in page
    assert "- `alpha-seed3.json`: BLEU is not a finite number and is left out." in page
    assert "- `beta-seed1.json`: no value of spread." in page
    assert "nan" not in page


def test_the_number_of_bold_intervals_is_compared_with_chance(project: Project) -> None:
    project.run()
    bold = sum(cell.startswith("**") for row in project.rows(DIFFERENCES).values() for cell in row)
    assert f"- {bold} of 6 intervals exclude 0." in project.page()
    assert "about 0.3 would do so by chance" in project.page()


def test_the_bootstrap_of_every_seed_is_that_of_sacrebleu(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    correct = synthetic.references(60)
    texts = {
        (method, seed): synthetic.translations(correct, share, 10 * seed + len(method))
        for method, share in (("plain", 0.6), ("alpha", 0.8))
        for seed in (1, 2)
    }
    scorer = BLEU()
    for (method, seed), text in texts.items():
        rows = synthetic.bleu_statistics(text, correct)
        score = scorer.corpus_score(text, [correct]).score
        project.add(method, seed, {"bleu": score}, bleu_statistics=rows)
    project.run()
    found = project.rows(BOOTSTRAP)
    assert list(found) == ["", "Alpha"]
    assert found["Alpha"][2:] == ["–", "–", "–"]
    for seed in (1, 2):
        named = [("plain", texts["plain", seed]), ("alpha", texts["alpha", seed])]
        _, scores = PairedTest(named, {"BLEU": BLEU()}, [correct], "bs", 1000)()
        plain, alpha = scores["BLEU"]
        cell = found["Alpha"][seed - 1]
        assert cell.strip("*").startswith(f"{alpha.score - plain.score:+.2f} [")
        assert cell.endswith(f"p = {alpha.p_value:.3f}")
    assert "statistics give" not in project.page()


def test_contradicting_statistics_of_bleu_are_remarked(project: Project) -> None:
    rows = synthetic.bleu_statistics(["a red hat is in the street"] * 4, ["a red hat"] * 4)
    project.add("plain", 1, measures(0, 1), bleu_statistics=rows)
    project.add("alpha", 1, measures(0, 1), bleu_statistics=rows[:3])
    project.run()
    assert "`plain-seed1.json`: BLEU is 30." in project.page()
    assert "Alpha, seed 1: no bootstrap, because 3 sentences were translated" in project.page()
    assert BOOTSTRAP not in project.page()


def test_costs_are_ratios_to_the_baseline_with_the_same_seed(project: Project) -> None:
    for seed, seconds in zip(SEEDS, (10.0, 20.0, 30.0, 40.0, 50.0), strict=True):
        project.add("plain", seed, measures(0, seed), cpu_seconds=seconds)
        more = {"cpu_seconds": seconds * (1 + seed / 10), "step_seconds": None}
        project.add("alpha", seed, measures(0.6, seed), **more)
    project.run()
    rows = project.rows("Costs")
    assert rows[""] == ["training, CPU s", "÷ plain", "step, s", "÷ plain"]
    assert rows["plain"] == ["30.0", "1.00", "0.100", "1.00"]
    assert rows["Alpha"] == ["41.0", "1.30 (1.10–1.50)", "–", "–"]
    assert "Gamma" not in rows


def test_times_of_different_processors_are_not_compared(project: Project) -> None:
    for seed in SEEDS:
        plain = {"machine": "slow", "cpu_seconds": 10.0}
        project.add("plain", seed, measures(0, seed), **plain)
        project.add("alpha", seed, measures(0.6, seed), machine="fast", cpu_seconds=5.0)
        on_both = "slow" if seed == 5 else "fast"
        project.add("beta", seed, measures(0.6, seed), machine=on_both, cpu_seconds=15.0)
    project.run()
    rows = project.rows("Costs")
    assert rows["Alpha"][:2] == ["5.00", "–"]
    assert rows["Beta"][:2] == ["15.0", "1.50"]
    assert "come from different processors: fast; slow." in project.page()


def test_meters_stand_beside_those_of_the_baseline(project: Project) -> None:
    for seed in SEEDS:
        project.add("plain", seed, measures(0, seed), meters={"head_cosine": 0.5})
        meters = {"head_cosine": 0.1 * seed, "noise": 0.25}
        project.add("alpha", seed, measures(0.6, seed), meters=meters)
    project.run()
    lines = project.page().split("# Meters")[1].splitlines()
    assert "| Alpha | `head_cosine` | 0.300 ± 0.158 | 0.500 ± 0 |" in lines
    assert "| Alpha | `noise` | 0.250 ± 0 | – |" in lines


def test_every_variant_that_was_tried_is_listed(project: Project) -> None:
    """Also those that were not chosen; the chosen one has the training flags of the tables."""
    flags = {"alpha": ["--arch", "a", "--rho", "1"], "alpha_wide": ["--arch", "a", "--rho", "2"]}
    for seed in SEEDS:
        settings = {"train": flags["alpha"], "evaluate": ["--gen-subset", "test"]}
        project.add("alpha", seed, measures(0.6, seed), settings=settings)
    for variant, level in (("alpha", 1.0), ("alpha_wide", 2.0)):
        for seed in (101, 102):
            path = project.path("x", 1).parent / "tuning" / f"{variant}-seed{seed}.json"
            settings = {"train": flags[variant], "evaluate": ["--gen-subset", "valid"]}
            more = {"split": "valid", "settings": settings, "path": path}
            project.add("alpha", seed, {"bleu": level + seed}, **more)
    project.run()
    rows = project.rows("Every variant tried")
    assert rows["alpha"] == ["`--rho 1`", "101, 102", "102.50 ± 0.71", "yes"]
    assert rows["alpha_wide"] == ["`--rho 2`", "101, 102", "103.50 ± 0.71", ""]
    assert project.rows(MEANS)["Alpha"][0] == "5"  # tuning runs are in no other table


def test_differences_between_runs_of_one_method_are_remarked(project: Project) -> None:
    settings = {"train": ["--arch", "a", "--lr", "1", "--lr", "2"]}
    for seed in SEEDS[:4]:
        project.add("alpha", seed, measures(0.6, seed), settings=settings)
    same = {"train": ["--lr", "2", "--arch", "a"]}
    project.add("alpha", 4, measures(0.6, 4), settings=same, versions={"torch": "2"})
    project.add("alpha", 5, measures(0.6, 5), settings=settings, commit="badcafe")
    project.run()
    assert "settings are not the same" not in project.page()  # the last of two equal flags counts
    assert "- The results come from different commits: badcafe; c0ffee." in project.page()
    assert project.rows("Settings")["Alpha"] == ["`--arch a`, `--lr 2`"]
    project.add("alpha", 5, measures(0.6, 5), settings={"train": ["--arch", "a", "--lr", "3"]})
    project.run()
    assert "- Alpha: the settings are not the same for all seeds." in project.page()


def test_a_suite_with_tasks_has_a_table_per_task_and_their_mean(tmp_path: Path) -> None:
    project = Project.create(tmp_path, synthetic.SUITE + "[tasks]\none = {}\ntwo = {}\n")
    for method, level in (("plain", 0), ("alpha", 1.0)):
        for seed in SEEDS[:4]:
            project.add(method, seed, {"bleu": 10 * level + seed, "ece": 0.1}, task="one")
        for seed in SEEDS[:3]:
            project.add(method, seed, {"bleu": 20 * level + seed**2}, task="two")
    project.run()
    page = project.page()
    one, two, mean = (
        project.rows(DIFFERENCES, "#" + page.split(f"\n## {task}\n")[1])["Alpha"]
        for task in ("One", "Two", "Mean over tasks")
    )
    assert one[:2] == ["4 of 5 seeds", "**+10.00 [+10.00, +10.00]** better"]
    assert two == ["3 of 5 seeds", "**+20.00 [+20.00, +20.00]** better"]
    assert mean == ["3 of 5 seeds", "**+15.00 [+15.00, +15.00]** better"]
    assert "mean over tasks, Alpha: BLEU better" in project.page("README.md")
    assert "Small translation, mean over tasks" in project.readme()


def test_the_readme_has_the_rows_that_the_suite_names(project: Project) -> None:
    project.run()
    text = project.readme()
    assert text.startswith("first\n<!-- evidence -->\n| experiment |")
    assert text.endswith("<!-- /evidence -->\nlast\n")
    assert "outer" not in text
    rows = [line for line in text.splitlines() if line.startswith("| [Small translation](docs")]
    assert len(rows) == 1  # Gamma has not run
    assert expected_cell(project, "alpha", "bleu") in rows[0]
    project.run()
    assert project.readme() == text


def test_the_index_lists_every_suite_and_every_clear_difference(project: Project) -> None:
    other = project.root / "suites" / "other.toml"
    other.write_text(synthetic.SUITE.replace("Small translation", "Not begun"))
    project.run()
    index = project.page("README.md")
    assert "| [Small translation](small.md) | 3 of 4 | Alpha: BLEU better;" in index
    assert "| Not begun | not run yet | – |" in index
    assert "seeds 101 to 103" in index
    assert not (project.root / "docs" / "evidence" / "other.md").exists()


def test_check_accepts_what_was_written(project: Project) -> None:
    project.run()
    before = project.files()
    assert project.run("--check") == 0
    assert project.files() == before


@pytest.mark.parametrize("name", ["small.md", "small.svg", "README.md"])
def test_check_names_a_changed_and_a_missing_page(
    project: Project, name: str, capsys: pytest.CaptureFixture
) -> None:
    project.run()
    path = project.root / "docs" / "evidence" / name
    text = path.read_text()
    digit = next(index for index, letter in enumerate(text) if letter == "5")
    path.write_text(f"{text[:digit]}6{text[digit + 1 :]}")
    capsys.readouterr()
    assert project.run("--check") == 1
    assert capsys.readouterr().err == f"{path} does not agree with the results\n"
    path.unlink()
    assert project.run("--check") == 1
    assert capsys.readouterr().err == f"{path} is missing\n"


def test_check_detects_a_changed_number_of_a_result(
    project: Project, capsys: pytest.CaptureFixture
) -> None:
    project.run()
    path = project.path("alpha", 3)
    content = json.loads(path.read_text())
    content["measures"]["bleu"] += 0.1
    path.write_text(json.dumps(content))
    before = project.files()
    capsys.readouterr()
    assert project.run("--check") == 1
    named = {line.split()[0] for line in capsys.readouterr().err.splitlines()}
    docs = project.root / "docs" / "evidence"
    wanted = {docs / "small.md", docs / "small.svg", project.root / "README.md"}
    assert named == {str(path) for path in wanted}
    assert project.files() == before


def test_pages_without_results_are_removed(project: Project, capsys: pytest.CaptureFixture) -> None:
    project.run()
    shutil.rmtree(project.root / "results" / "small")
    capsys.readouterr()
    assert project.run("--check") == 1
    assert "small.md exists, but there are no results for it" in capsys.readouterr().err
    project.run()
    names = [path.name for path in (project.root / "docs" / "evidence").iterdir()]
    assert names == ["README.md"]
    assert "No results yet." in project.readme()


def test_the_pages_of_the_project_agree_with_its_results() -> None:
    """docs/evidence and README.md are those that table.py writes."""
    if not any((synthetic.FOLDER / "results").glob("*/*.json")):
        pytest.skip("examples/evidence/results has no results yet")
    assert synthetic.table.main(["--check"]) == 0


def test_the_suites_of_the_project_can_be_shown() -> None:
    layouts = layout.read_layouts(synthetic.FOLDER / "suites")
    assert layouts
    for one in layouts.values():
        assert one.others
        assert one.measures
        assert len(one.seeds) >= 3
        assert max(one.seeds) < 101


def test_the_command_writes_one_line_per_problem(project: Project) -> None:
    """As a process: no other output, although fairseq makes every library log on import."""
    project.run()
    (project.root / "docs" / "evidence" / "small.svg").unlink()
    folders = [f"--{name}={project.root / name}" for name in ("suites", "results", "docs")]
    script = [sys.executable, str(synthetic.FOLDER / "table.py"), "--check", *folders]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    missing = project.root / "docs" / "evidence" / "small.svg"
    assert done.stderr == f"{missing} is missing\n"
