"""Bad results and suites end table.py with one line that names the file; the picture is exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import evidence_results as synthetic
from bad_input import complaint
from evidence_results import SEEDS, Project, measures

pages, picture, layout = (__import__(name) for name in ("pages", "picture", "layout"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project.create(tmp_path)
    for method, level in (("plain", 0), ("alpha", 0.6), ("beta", -0.6)):
        project.add_all(method, SEEDS, lambda seed, level=level: measures(level, seed))
    return project


DAMAGED = {
    "": "is not JSON",
    '{"suite": "small", "task"': "is not JSON",
    "[1, 2]": "is not a JSON object",
    "{}": "'seed' is missing",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_result_is_named(project: Project, text: str) -> None:
    path = project.path("alpha", 2)
    path.write_text(text)
    before = project.files()
    message = complaint(project.run)
    assert str(path) in message
    assert DAMAGED[text] in message
    assert project.files() == before


def test_a_result_that_is_not_text_is_named(project: Project) -> None:
    project.path("alpha", 2).write_bytes(b"\xff\xfe\x00{")
    assert "alpha-seed2.json is not JSON" in complaint(project.run)


CHANGED = [
    ({"measures": {"bleu": "high"}}, "measures.bleu is 'high', not a number"),
    ({"measures": {"bleu": True}}, "measures.bleu is True, not a number"),
    ({"measures": [1]}, "measures is not a table of numbers"),
    ({"seed": "2"}, "seed is '2', not an integer"),
    ({"seed": 3}, "holds the result alpha-seed3.json"),
    ({"method": "beta"}, "holds the result beta-seed2.json"),
    ({"suite": "large"}, "suite is 'large'"),
    ({"task": "MRPC"}, "task 'MRPC' is none of the suite's"),
    ({"split": "valid"}, "split is 'valid', not \"test\""),
    ({"bleu_statistics": [[1, 2]]}, "bleu_statistics must be a list of rows of 10 integers"),
    ({"cpu_seconds": "long"}, "cpu_seconds is 'long', not a number"),
]


@pytest.mark.parametrize(("change", "problem"), CHANGED, ids=lambda value: str(value)[:40])
def test_an_impossible_result_is_named(project: Project, change: dict, problem: str) -> None:
    path = project.path("alpha", 2)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    message = complaint(project.run)
    assert f"{path}: {problem}" in message


def test_the_rule_about_seeds_is_enforced(project: Project) -> None:
    """The tables have the suite's seeds on test data; tuning has seeds from 101 on."""
    project.add("alpha", 6, measures(0, 6))
    assert "alpha-seed6.json: seed is none of the suite's: 1, 2, 3, 4, 5" in complaint(project.run)
    project.path("alpha", 6).unlink()
    path = project.path("x", 1).parent / "tuning" / "wide-seed4.json"
    project.add("alpha", 4, measures(0, 4), split="valid", path=path)
    assert "wide-seed4.json: seed 4: tuning runs have seeds from 101 on" in complaint(project.run)
    path.unlink()
    path = path.with_name("wide-seed101.json")
    project.add("alpha", 101, measures(0, 4), path=path)
    assert "wide-seed101.json: split is 'test', not \"valid\"" in complaint(project.run)


def test_results_of_an_unknown_method_or_suite_are_refused(project: Project) -> None:
    """Otherwise they would silently be missing from every table."""
    path = project.add("delta", 1, measures(0, 1))
    assert f"{path}: method is none of the suite's: plain, alpha" in complaint(project.run)
    path.unlink()
    (project.root / "suites" / "small.toml").rename(project.root / "suites" / "tiny.toml")
    folder = project.root / "results" / "small"
    assert f"{folder}: there is no suite file small.toml" in complaint(project.run)


SUITES = [
    ("seeds = [1, 2, 3, 4, 5]", "", "'seeds' is missing"),
    ("seeds = [1, 2, 3, 4, 5]", "seeds = ['1']", "seeds must be a list of integers"),
    ('baseline = "plain"', 'baseline = "vanilla"', "baseline names 'vanilla'"),
    ('better = "lower"', 'better = "less"', "measures.ece.better is 'less'"),
    ("scale = 100", "scale = -1", "measures.ece.scale is -1"),
    ("digits = 3", "digits = 0.5", "measures.ece.digits is 0.5"),
    ('methods = ["alpha", "gamma"]', 'methods = ["plain"]', "readme.methods names 'plain'"),
    ('measures = ["bleu"]', 'measures = ["rouge"]', "readme.measures names 'rouge'"),
    ("[methods]", "[methods", "small.toml: "),
    ("[methods]", 'name = "large"\n[methods]', "small.toml: "),
]


@pytest.mark.parametrize(("old", "new", "problem"), SUITES, ids=[new[:20] for _, new, _ in SUITES])
def test_a_bad_suite_file_is_named(project: Project, old: str, new: str, problem: str) -> None:
    path = project.root / "suites" / "small.toml"
    assert old in synthetic.SUITE
    if new.startswith("name"):
        path.write_text(f'name = "large"\n{synthetic.SUITE}')
    else:
        path.write_text(synthetic.SUITE.replace(old, new, 1))
    message = complaint(project.run)
    assert str(path) in message
    assert problem in message


def test_unknown_suites_folders_and_markers_are_named(project: Project) -> None:
    assert "there is no suite big: choose from small" in complaint(project.run, "big")
    assert project.run("small") == 0
    (project.root / "README.md").write_text("<!-- /evidence -->\n<!-- evidence -->\n")
    assert "README.md must contain <!-- evidence -->" in complaint(project.run)
    (project.root / "suites").rename(project.root / "moved")
    assert "is not a directory" in complaint(project.run)


def test_measures_have_the_labels_of_the_evaluation_unless_the_suite_has_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bare.toml"
    path.write_text(
        'title = "t"\nbaseline = "p"\nseeds = [1, 2, 3]\nmethods = {p = {}, q = {}}\n'
        'report = ["nll", "mutual_information", "ood_auroc_entropy"]\n'
        'measures = {nll = {label = "loss", digits = 1}}\n'
    )
    nll, information, auroc = layout.read_layout(path).measures
    assert (nll.heading, nll.digits, nll.better) == ("loss ↓", 1, "lower")
    assert (information.heading, information.better) == ("mutual information (bits)", "neither")
    assert auroc.heading == "out-of-domain AUROC (entropy) ↑"


def read(project: Project) -> pages.SuiteResults:
    path = project.root / "suites" / "small.toml"
    return pages.SuiteResults.read(layout.read_layout(path), project.root / "results")


def test_the_picture_shows_the_differences_of_the_table(project: Project) -> None:
    """One panel per measure; the line of a method is its interval, the mark its mean."""
    suite = read(project)
    (section,) = suite.sections
    grid = picture.panel_rows(suite.layout, suite.sections)
    assert [measure.name for _, measure in grid[0]] == ["bleu", "ece", "spread"]
    axes = picture.figure_of(grid).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["Alpha", "Beta"]
    for ax, measure in zip(axes, suite.layout.measures, strict=True):
        drawn = [line.get_xdata() for line in ax.get_lines()[1:]]  # the first is the line at 0
        for place, method in enumerate(("alpha", "beta")):
            seeds, interval, mean = drawn[3 * place : 3 * place + 3]
            comparison = section.compare(method, measure)
            difference = comparison.difference
            assert list(seeds) == list(comparison.by_seed.values())
            assert list(interval) == [difference.low, difference.high]
            assert list(mean) == [difference.mean]


def test_the_picture_depends_on_the_results_alone(project: Project) -> None:
    first = read(project).picture
    assert first == read(project).picture
    assert "<dc:date>" not in first
    assert all(line == line.rstrip() for line in first.splitlines())
    for text in ("Alpha", "Beta", "ECE, %", "better", "worse"):
        assert f">{text}</text>" in first
    project.add("alpha", 1, measures(0.7, 1))
    assert first != read(project).picture


def test_there_is_no_picture_without_intervals(tmp_path: Path) -> None:
    project = Project.create(tmp_path)
    for method in ("plain", "alpha"):
        project.add_all(method, SEEDS[:2], lambda seed: measures(0, seed))
    project.run()
    assert ".svg" not in project.page()
    assert not (project.root / "docs" / "evidence" / "small.svg").exists()
