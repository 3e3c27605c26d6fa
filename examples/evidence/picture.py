"""The picture of a suite: every difference to the baseline with its interval, one row per method.

The background is white, so that the picture is readable on light and on dark pages.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from layout import Layout, Measure
from sections import Comparison, Section

from fairseq_stochattn.analysis.drawing import COLOURS, house_style
from fairseq_stochattn.core.optional import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Row = list[tuple[Section, Measure]]  # the panels of one row
WIDTH = 7.3  # inches: 700 pixels on a page
COLUMNS = 3
LABEL_WIDTH, TITLE_WIDTH = 18, 24  # characters
ROW_HEIGHT, PANEL_EXTRA, LEGEND_HEIGHT = 0.31, 0.85, 0.3  # inches
DIRECTIONS = {"higher": "higher is better →", "lower": "← lower is better", "neither": " "}
# verdict → (colour, marker, filled, label)
STYLES = {
    "better": (COLOURS[0], "o", True, "better"),
    "worse": (COLOURS[1], "s", True, "worse"),
    "higher": ("#404040", "^", True, "higher"),
    "lower": ("#404040", "v", True, "lower"),
    "": ("#7f7f7f", "o", False, "interval includes 0"),
}


def draw(layout: Layout, sections: Sequence[Section]) -> str:
    """Return the picture as SVG text; empty if no comparison has an interval.

    The text depends on the results alone: no date, no random ids.
    """
    grid = panel_rows(layout, sections)
    if not grid:
        return ""
    return as_svg(layout, lambda: figure_of(grid))


def as_svg(layout: Layout, figure: Callable[[], Figure]) -> str:
    """Return the text of the figure that the function draws."""
    require_package("matplotlib", "the pictures of the evidence")
    import matplotlib

    text = io.StringIO()
    options = {"svg.fonttype": "none", "svg.hashsalt": layout.name}
    with house_style(), matplotlib.rc_context(options):
        metadata = {"Date": None, "Creator": None, "Title": layout.title}
        figure().savefig(text, format="svg", metadata=metadata)
    # Editors and git complain about spaces at the ends of lines, which matplotlib writes.
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def panel_rows(layout: Layout, sections: Sequence[Section]) -> list[Row]:
    """Return the panels that have an interval, in rows of at most three.

    The panels of a suite with tasks are ordered by measure, so that a row compares tasks.
    """
    panels = [
        [(section, measure) for section in sections if _has_interval(section, measure)]
        for measure in layout.measures
    ]
    if not layout.tasks:
        panels = [[panel for row in panels for panel in row]]
    return [row[start : start + COLUMNS] for row in panels for start in range(0, len(row), COLUMNS)]


def _has_interval(section: Section, measure: Measure) -> bool:
    return any(one.measure == measure and one.difference for one in section.comparisons)


def figure_of(grid: Sequence[Row]) -> Figure:
    """Return the figure with one row of panels per row of ``grid``, and the legend below."""
    from matplotlib.figure import Figure

    compared = [one for row in grid for section, _ in row for one in section.comparisons]
    present = {one.method for one in compared if one.difference}
    methods = [method for method in grid[0][0][0].layout.others if method in present]
    columns = max(len(row) for row in grid)
    height = len(grid) * (ROW_HEIGHT * len(methods) + PANEL_EXTRA) + LEGEND_HEIGHT
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    axes = figure.subplots(len(grid), columns, squeeze=False)
    for row, places in zip(grid, axes, strict=True):
        for column, ax in enumerate(places):
            if column < len(row):
                _panel(ax, *row[column], methods, labelled=column == 0)
            else:
                ax.remove()
    verdicts = {one.verdict for one in compared if one.difference}
    figure.legend(handles=_legend(verdicts), loc="outside lower center", ncols=len(STYLES))
    return figure


def _panel(
    ax: Axes, section: Section, measure: Measure, methods: Sequence[str], labelled: bool
) -> None:
    """Draw one measure: a row per method, the first one on top."""
    ax.axvline(0, color="black", linewidth=0.8)
    for place, method in enumerate(methods):
        _interval(ax, -place, section.compare(method, measure))
    ax.set_ylim(0.4 - len(methods), 0.6)  # the ticks of the seeds are below their row
    labels = [textwrap.fill(section.layout.methods[method], LABEL_WIDTH) for method in methods]
    ax.set_yticks([-place for place in range(len(methods))] if labelled else [])
    if labelled:
        ax.set_yticklabels(labels)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=4)
    ax.spines["left"].set_visible(False)
    name = f"{section.task}: {measure.label}" if section.task else measure.label
    ax.set_title(textwrap.fill(name, TITLE_WIDTH), fontweight="bold")
    ax.set_xlabel(DIRECTIONS[measure.better], fontsize=8)


def _interval(ax: Axes, height: float, comparison: Comparison) -> None:
    """Draw the interval, its centre, and small ticks for the single seeds."""
    if comparison.difference is None:
        return
    difference = comparison.difference
    colour, marker, filled, _ = STYLES[comparison.verdict]
    dots = list(comparison.by_seed.values())
    ax.plot(dots, [height - 0.24] * len(dots), "|", color="#8c8c8c", markersize=4, zorder=1)
    ax.plot([difference.low, difference.high], [height] * 2, color=colour, linewidth=2)
    face = colour if filled else "white"
    ax.plot([difference.mean], [height], marker, color=colour, markerfacecolor=face, markersize=6)


def _legend(verdicts: Collection[str]) -> list[Line2D]:
    """Return the entries of the legend, only those that occur."""
    from matplotlib.lines import Line2D

    handles = []
    for name in (name for name in STYLES if name in verdicts):
        colour, marker, filled, label = STYLES[name]
        face = colour if filled else "white"
        line = {"color": colour, "linewidth": 2, "marker": marker, "markerfacecolor": face}
        handles.append(Line2D([], [], label=label, markersize=6, **line))
    return handles
