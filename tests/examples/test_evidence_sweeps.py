"""Sweeps of a flag: the methods that a suite file stands for, and the picture over the values."""

from __future__ import annotations

from pathlib import Path

import pytest

import evidence_results as synthetic
from evidence_results import SEEDS, Project, measures
from fairseq_stochattn.core.errors import InputError

layout, pages, suite, sweep_picture = (
    __import__(name) for name in ("layout", "pages", "suite", "sweep_picture")
)

RUNNING = """
minutes = 1
prepare = [{makes = "data", command = ["prepare.py"]}]
train = {flags = ["--lr", "1"]}
evaluate = {flags = [], test = ["test"], valid = ["valid"]}
"""
METHODS = """
[methods.plain]
train = ["--arch", "plain"]
[methods.alpha]
train = ["--arch", "alpha"]
[methods.beta]
variant_of = "alpha"
train = ["--beta"]
[tasks]
A = {}
B = {}
"""
BASE = f"""
title = "Base"
text = "Text of the base."
baseline = "plain"
seeds = [1, 2, 3, 4, 5]
report = ["bleu", "ece", "spread"]
{RUNNING}
[measures]
bleu = {{label = "BLEU", digits = 2, better = "higher"}}
ece = {{label = "ECE", digits = 3, better = "lower"}}
spread = {{label = "spread", digits = 4, better = "neither"}}
{METHODS}
[tuning.wide]
variant_of = "beta"
train = ["--wide"]
"""
SWEEP = """
extends = "base"
title = "Sweep"
report = ["bleu", "ece"]
[sweeps.x]
label = "Alpha"
symbol = "λ"
variant_of = "beta"
flag = "--weight"
values = [0, 0.01, 10]
[sweeps.y]
label = "Gamma"
symbol = "λ"
train = ["--arch", "gamma"]
flag = "--weight"
values = [0.01, 1]
[sweeps.rho]
symbol = "ρ"
variant_of = "alpha"
flag = "--rho"
values = [1.5]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def test_a_sweep_stands_for_one_method_per_value(folder: Path) -> None:
    found = suite.read_suite("sweep", folder)
    assert {name: " ".join(method.train) for name, method in found.methods.items()} == {
        "plain": "--arch plain",
        "x_0": "--arch alpha --beta --weight 0",
        "x_0.01": "--arch alpha --beta --weight 0.01",
        "x_10": "--arch alpha --beta --weight 10",
        "y_0.01": "--arch gamma --weight 0.01",
        "y_1": "--arch gamma --weight 1",
        "rho_1.5": "--arch alpha --rho 1.5",
    }
    assert (found.minutes, found.train, list(found.tasks)) == (1, ("--lr", "1"), ["A", "B"])
    shown = layout.read_layout(folder / "sweep.toml")
    assert (shown.title, shown.text, shown.seeds) == ("Sweep", "", (1, 2, 3, 4, 5))
    assert [measure.label for measure in shown.measures] == ["BLEU", "ECE"]
    assert shown.methods["x_0.01"] == "Alpha, λ = 0.01"
    assert shown.methods["rho_1.5"] == "rho, ρ = 1.5"


def test_the_other_suite_is_unchanged_and_has_no_sweeps(folder: Path) -> None:
    found = suite.read_suite("base", folder)
    trained = {name: " ".join(method.train) for name, method in found.methods.items()}
    assert trained["beta"] == "--arch alpha --beta"
    assert trained["wide"] == "--arch alpha --beta --wide"
    assert found.methods["wide"].tuning
    assert layout.read_layout(folder / "base.toml").sweeps == ()


def test_some_tasks_of_the_other_suite(folder: Path) -> None:
    path = folder / "sweep.toml"
    path.write_text(SWEEP.replace("report", 'only_tasks = ["B"]\nreport', 1))
    assert list(suite.read_suite("sweep", folder).tasks) == ["B"]
    assert layout.read_layout(path).tasks == ("B",)


MISTAKES = [
    ('extends = "base"', 'extends = "none"', "extends names 'none'"),
    ('extends = "base"', 'extends = "sweep"', "extends names 'sweep', but there is no other suite"),
    ("report", 'only_tasks = ["C"]\nreport', "only_tasks names 'C', which is not one of A, B"),
    ("report", 'baseline = "vanilla"\nreport', "baseline names 'vanilla'"),
    ('variant_of = "beta"', 'variant_of = "delta"', "x_0: variant_of names 'delta'"),
    ('symbol = "ρ"', "", "sweeps.rho.symbol is missing"),
    ("values = [1.5]", "values = []", "sweeps.rho.values must be different numbers"),
    ("values = [1.5]", 'values = ["1"]', "sweeps.rho.values must be different numbers"),
    ("values = [1.5]", "values = [1, 1]", "sweeps.rho.values must be different numbers"),
    ("values = [1.5]", "values = [1]\nlabels = 3", "sweeps.rho has no entry labels"),
    ("[sweeps.rho]", "[methods.x_10]\n[sweeps.rho]", "sweeps.x: there is a method x_10 already"),
]


@pytest.mark.parametrize(("old", "new", "problem"), MISTAKES, ids=[x[1][:25] for x in MISTAKES])
def test_mistakes_are_named(folder: Path, old: str, new: str, problem: str) -> None:
    path = folder / "sweep.toml"
    assert old in SWEEP
    path.write_text(SWEEP.replace(old, new, 1))
    for read in (lambda: layout.read_layout(path), lambda: suite.read_suite("sweep", folder)):
        with pytest.raises(InputError) as found:
            read()
        assert str(path) in str(found.value)
        assert problem in str(found.value)


def test_the_picture_shows_the_differences_by_value(tmp_path: Path) -> None:
    """A panel per number and measure, an error bar per value; the page links the picture."""
    project = Project.create(tmp_path, synthetic.SUITE)
    sweep = SWEEP.replace('extends = "base"', "").split("[sweeps.x]")[1]
    sweep = sweep.replace('variant_of = "beta"', "").replace('variant_of = "alpha"', "")
    path = project.root / "suites" / "small.toml"
    path.write_text(f"{synthetic.SUITE}\n[sweeps.x]{sweep}")
    levels = {"plain": 0, "x_0": 0, "x_0.01": 0.3, "x_10": -0.6, "y_0.01": 0.2, "rho_1.5": 0.5}
    for method, level in levels.items():
        project.add_all(method, SEEDS, lambda seed, level=level: measures(level, seed))
    project.add_all("y_1", SEEDS[:2], lambda seed: measures(0, seed))  # too few for an interval
    assert project.run() == 0
    assert "(small-sweeps.svg)" in project.page()
    drawn = (project.root / "docs" / "evidence" / "small-sweeps.svg").read_text()
    for text in ("λ", "ρ", "0.01", "10", "1.5", "Gamma", "BLEU"):
        assert f">{text}</text>" in drawn
    assert project.run("--check") == 0
    results = pages.SuiteResults.read(layout.read_layout(path), project.root / "results")
    rows = sweep_picture.panel_rows(results.layout, results.sections)
    assert [[panel.symbol for panel in row] for row in rows] == [["λ"] * 3, ["ρ"] * 3]
    assert rows[0][0].values == ["0", "0.01", "1", "10"]
    axes = sweep_picture.figure_of(rows).axes
    (section,) = results.sections
    for panel, ax in zip([p for row in rows for p in row], axes, strict=True):
        labels = [label.get_text() for label in ax.get_xticklabels()]
        assert labels == panel.values
        for bars, sweep in zip(ax.containers, panel.sweeps, strict=True):
            line, _, (segments,) = bars.lines
            expected = {
                value: section.compare(method, panel.measure).difference
                for value, method in sorted(sweep.methods.items(), key=lambda x: float(x[0]))
            }
            shown = {value: one for value, one in expected.items() if one is not None}
            assert len(shown) == (1 if sweep.label in ("Gamma", "rho") else 3)
            assert [round(x) for x in line.get_xdata()] == [labels.index(x) for x in shown]
            assert list(line.get_ydata()) == [one.mean for one in shown.values()]
            for segment, one in zip(segments.get_segments(), shown.values(), strict=True):
                assert segment[:, 1] == pytest.approx([one.low, one.high])


def test_the_suites_of_this_package_vary_the_flags_that_they_name() -> None:
    flags = {
        "cora_weight": ("--alignment-weight",),
        "multi30k_babn": ("--babn-rho", "--babn-sigma"),
        "rte_asa_tau": ("--asa-tau",),
    }
    for name, expected in flags.items():
        found = suite.read_suite(name)
        varied = [method for method in found.methods.values() if method.name != "plain"]
        assert {method.train[-2] for method in varied} == set(expected)
        assert len(layout.read_layout(suite.SUITES / f"{name}.toml").sweeps) >= len(expected)
