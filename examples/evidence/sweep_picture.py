"""The picture of a suite's sweeps: differences to the baseline against the value of a flag.

One row per swept number, such as λ, one column per measure; the sweeps of the same number are lines
of one panel. The values are at equal distances, because they may contain 0 and span many powers
of 10.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from comparison import Difference
from layout import Layout, Measure
from picture import COLUMNS, DIRECTIONS, TITLE_WIDTH, WIDTH, as_svg
from sections import Section
from suite_file import Sweep

from fairseq_stochattn.analysis.drawing import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_HEIGHT, LEGEND_HEIGHT = 2.1, 0.35  # inches
SHIFT = 0.12  # between the lines of a panel, so that intervals do not hide each other
MANY_VALUES = 5  # more than these are written at an angle


class Panel(NamedTuple):
    """One measure against one number, on one task."""

    section: Section
    measure: Measure
    symbol: str
    sweeps: list[Sweep]

    @property
    def values(self) -> list[str]:
        """The values of all sweeps, in ascending order."""
        return sorted({value for sweep in self.sweeps for value in sweep.methods}, key=float)


def draw_sweeps(layout: Layout, sections: Sequence[Section]) -> str:
    """Return the picture as SVG text; empty if no sweep has an interval."""
    rows = panel_rows(layout, sections)
    return as_svg(layout, lambda: figure_of(rows)) if rows else ""


def panel_rows(layout: Layout, sections: Sequence[Section]) -> list[list[Panel]]:
    """Return the panels with an interval: rows of at most three, a new row for each number."""
    rows = []
    for symbol in dict.fromkeys(sweep.symbol for sweep in layout.sweeps):
        sweeps = [sweep for sweep in layout.sweeps if sweep.symbol == symbol]
        panels = [
            Panel(section, measure, symbol, sweeps)
            for section in sections
            for measure in layout.measures
            if any(_points(section, measure, sweep) for sweep in sweeps)
        ]
        rows += [panels[start : start + COLUMNS] for start in range(0, len(panels), COLUMNS)]
    return rows


def figure_of(rows: Sequence[Sequence[Panel]]) -> Figure:
    """Return the figure of all panels, with one legend for the sweeps."""
    from matplotlib.figure import Figure

    sweeps = list(dict.fromkeys(s.label for row in rows for panel in row for s in panel.sweeps))
    styles = {
        label: {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}
        for n, label in enumerate(sweeps)
    }
    height = len(rows) * ROW_HEIGHT + LEGEND_HEIGHT
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    axes = figure.subplots(len(rows), max(map(len, rows)), squeeze=False)
    for row, places in zip(rows, axes, strict=True):
        for column, ax in enumerate(places):
            if column < len(row):
                _draw_panel(ax, row[column], styles)
            else:
                ax.remove()
    handles = {}
    for ax in figure.axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=COLUMNS)
    return figure


def _draw_panel(ax: Axes, panel: Panel, styles: dict[str, dict[str, str]]) -> None:
    ax.axhline(0, color="black", linewidth=0.8)
    places = {value: place for place, value in enumerate(panel.values)}
    for number, sweep in enumerate(panel.sweeps):
        shift = SHIFT * (number - (len(panel.sweeps) - 1) / 2)
        points = _points(panel.section, panel.measure, sweep)
        found = sorted((places[value] + shift, one) for value, one in points.items())
        if not found:
            continue
        means = [difference.mean for _, difference in found]
        margins = [difference.high - difference.mean for _, difference in found]
        ax.errorbar(
            [place for place, _ in found],
            means,
            yerr=margins,
            label=sweep.label,
            capsize=2,
            markersize=4,
            linewidth=1.2,
            **styles[sweep.label],
        )
    ax.set_xticks(range(len(places)), list(places))
    if len(places) > MANY_VALUES:
        ax.tick_params(axis="x", labelrotation=45)
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.locator_params(axis="y", nbins=5)
    ax.set_xlabel(panel.symbol)
    baseline = panel.section.layout.methods[panel.section.layout.baseline]
    direction = DIRECTIONS[panel.measure.better].strip()
    ax.set_ylabel(f"difference to {baseline}\n{direction}".rstrip(), fontsize=8)
    task, label = panel.section.task, panel.measure.label
    name = f"{task}: {label}" if task else label
    ax.set_title(textwrap.fill(name, TITLE_WIDTH), fontweight="bold")


def _points(section: Section, measure: Measure, sweep: Sweep) -> dict[str, Difference]:
    """The difference to the baseline for every value that has an interval."""
    compared = {
        value: section.compare(method, measure).difference
        for value, method in sweep.methods.items()
    }
    return {value: difference for value, difference in compared.items() if difference is not None}
