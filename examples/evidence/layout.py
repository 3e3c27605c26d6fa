"""Reads from a suite file how its results are shown: measures, methods, tasks and seeds.

These entries of the file are read here; ``suite.py`` reads those that describe the runs:

- ``title`` and ``text``: heading and first paragraph of the page;
- ``baseline``, ``seeds``, and the names of ``[tasks.NAME]``;
- ``report``: the measures, in the order of the columns;
- ``[measures.NAME]``, where the defaults of stochattn-evaluate do not fit: ``label``, ``digits``,
  ``better`` (``"higher"``, ``"lower"`` or ``"neither"``), ``scale`` (a factor);
- ``[methods.NAME]``: ``label``, and ``note``, a remark below the tables;
- ``[readme]``: ``measures`` and ``methods`` of the table in the project's README;
- ``[sweeps.NAME]``: the panels of the picture of the sweeps (``suite_file.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib
from suite_file import Sweep, read_content, sweeps_of

from fairseq_stochattn.analysis.metric_labels import MetricLabel, label_of
from fairseq_stochattn.core.errors import InputError

ARROWS = {"higher": "↑", "lower": "↓", "neither": ""}  # values of ``better``
OUT_OF_DOMAIN = "ood_auroc_"  # start of a measure's name; the score follows
_DIGITS = re.compile(r"\.(\d+)")  # in a number format such as {:.2f}


@dataclass(frozen=True)
class Measure:
    """How a measure is shown."""

    name: str
    label: str
    digits: int
    better: str  # a key of ARROWS
    scale: float = 1.0  # 100 shows a share in percent

    @property
    def heading(self) -> str:
        """The label with an arrow that points to better values."""
        return f"{self.label} {ARROWS[self.better]}".rstrip()

    def verdict(self, difference: float) -> str:
        """Return "better" or "worse" for a difference to the baseline.

        Where neither direction is better, return "higher" or "lower".
        """
        direction = "higher" if difference > 0 else "lower"
        if self.better == "neither":
            return direction
        return "better" if direction == self.better else "worse"


@dataclass(frozen=True)
class Layout:
    """What the tables of a suite contain, in their order."""

    name: str
    title: str
    baseline: str
    seeds: tuple[int, ...]
    measures: tuple[Measure, ...]
    methods: dict[str, str]  # name → label
    notes: dict[str, str] = field(default_factory=dict)  # method → what to know about its row
    tasks: tuple[str, ...] = ()  # empty: the suite is one task
    text: str = ""
    readme_measures: tuple[str, ...] = ()
    readme_methods: tuple[str, ...] = ()
    sweeps: tuple[Sweep, ...] = ()

    @property
    def others(self) -> list[str]:
        """The methods that are compared with the baseline."""
        return [method for method in self.methods if method != self.baseline]

    def measure(self, name: str) -> Measure:
        """Return the measure of this name."""
        return next(measure for measure in self.measures if measure.name == name)


def read_layouts(folder: Path) -> dict[str, Layout]:
    """Return the layouts of all suites of a folder, by name."""
    return {path.stem: read_layout(path) for path in sorted(folder.glob("*.toml"))}


def read_layout(path: Path) -> Layout:
    """Return the layout of one suite file. An error names the file and the entry."""
    try:
        return _layout(path.stem, read_content(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path}: {error}") from None
    except KeyError as error:
        raise InputError(f"{path}: {error} is missing") from None


def _layout(stem: str, content: Mapping[str, Any]) -> Layout:
    if content.get("name", stem) != stem:
        raise InputError(f"name is {content['name']!r}, but the file is named {stem!r}")
    described, methods = content.get("measures", {}), content["methods"]
    readme = content.get("readme", {})
    layout = Layout(
        name=stem,
        title=content["title"],
        baseline=content["baseline"],
        seeds=tuple(content["seeds"]),
        measures=tuple(_measure(name, described.get(name, {})) for name in content["report"]),
        methods={name: table.get("label", name) for name, table in methods.items()},
        notes={name: table["note"] for name, table in methods.items() if "note" in table},
        tasks=tuple(content.get("tasks", ())),
        text=content.get("text", ""),
        readme_measures=tuple(readme.get("measures", ())),
        readme_methods=tuple(readme.get("methods", ())),
        sweeps=sweeps_of(content),
    )
    _require_known("baseline", (layout.baseline,), layout.methods)
    _require_known("readme.methods", layout.readme_methods, layout.others)
    _require_known("readme.measures", layout.readme_measures, content["report"])
    if not layout.seeds or not all(isinstance(seed, int) for seed in layout.seeds):
        raise InputError("seeds must be a list of integers")
    return layout


def _measure(name: str, table: Mapping[str, Any]) -> Measure:
    default = _default(name)
    better = table.get("better", default.better or "neither")
    if better not in ARROWS:
        raise InputError(f"measures.{name}.better is {better!r}, not {', '.join(ARROWS)}")
    found = _DIGITS.search(default.format)
    digits, scale = table.get("digits", int(found[1]) if found else 2), table.get("scale", 1.0)
    if not isinstance(digits, int) or digits < 0:
        raise InputError(f"measures.{name}.digits is {digits!r}, not a number of digits")
    if not isinstance(scale, int | float) or scale <= 0:
        raise InputError(f"measures.{name}.scale is {scale!r}, not a positive number")
    return Measure(name, table.get("label", default.label), digits, better, scale)


def _default(name: str) -> MetricLabel:
    """Return how stochattn-evaluate shows the measure."""
    if not name.startswith(OUT_OF_DOMAIN):
        return label_of(name)
    score = name.removeprefix(OUT_OF_DOMAIN).replace("_", " ")
    meaning = "separation of out-of-domain data"
    return MetricLabel(f"out-of-domain AUROC ({score})", "{:.3f}", "higher", meaning)


def _require_known(entry: str, names: tuple[str, ...], known: Any) -> None:
    """Raise ``InputError`` if ``entry`` names something that the suite does not have."""
    for name in names:
        if name not in known:
            raise InputError(f"{entry} names {name!r}, which is not one of {', '.join(known)}")
