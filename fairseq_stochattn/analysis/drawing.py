"""Helpers for all figures: files, sizes, and line styles that differ in more than colour.

The colours come from Okabe and Ito's palette and are readable on white and on black.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.files import atomic_file
from ..core.optional import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANEL = (3.55, 2.7)  # inches: about the width of a phone
SQUARE = (3.55, 3.7)
_MARKERS_PER_LINE = 12  # approximate number
_SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 10,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
}


def require_drawable(path: Path, flag: str = "--output") -> None:
    """Raise ``InputError`` if no figure can be saved to ``path``. Call this before long work."""
    if path.suffix not in FORMATS:
        raise InputError(f"{flag} {path}: the name must end in {', '.join(FORMATS)}")
    require_package("matplotlib", flag)


@contextmanager
def house_style() -> Iterator[None]:
    """Within the block, all figures have this package's style instead of the user's settings."""
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS, "backend": "agg"}):
        yield


def panels(
    count: int, size: tuple[float, float] = PANEL, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels of ``size`` inches each, filled row by row."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def save(figure: Figure, path: Path) -> None:
    """Save the figure in the format of the file's suffix. An error leaves no partial file."""
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=150)


def line_style(index: int, points: int) -> dict[str, Any]:
    """Colour, dashes and markers of line number ``index``. 140 successive styles all differ."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
        "markevery": max(1, points // _MARKERS_PER_LINE),
        "linewidth": 1.5,
    }


def label_ends(ax: Axes, labels: Sequence[tuple[float, str, str]], lines: int = 1) -> None:
    """Write labels (y, text, colour) at the right of the axes, each near its y, without overlap.

    Each text has ``lines`` lines. Call this after everything is drawn, because it fixes
    the y limits.
    """
    low, high = ax.get_ylim()
    ax.set_ylim(low, high)
    axes_height = ax.get_window_extent().height / ax.figure.dpi * 72  # points
    gap = 10.5 * lines / axes_height
    places: list[float] = []
    ordered = sorted((((y - low) / (high - low), text, colour) for y, text, colour in labels))
    # First from bottom to top: each label is at least one gap above the previous one.
    for height, _, _ in ordered:
        places.append(max(height, places[-1] + gap) if places else height)
    # Then from top to bottom: the top label moves into the axes and pushes down the labels that
    # are now too close to it.
    over = max(0.0, places[-1] - 1.0) if places else 0.0
    for index in range(len(places) - 1, -1, -1):
        ceiling = places[index + 1] - gap if index + 1 < len(places) else places[index] - over
        places[index] = min(places[index], ceiling)
    for place, (_, text, colour) in zip(places, ordered, strict=True):
        ax.annotate(
            text,
            (1.02, place),
            xycoords="axes fraction",
            va="center",
            color=colour,
            fontsize=8,
            annotation_clip=False,
        )
