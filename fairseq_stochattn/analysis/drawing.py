"""What all pictures share: files, sizes, and lines that are told apart without colour too.

The colours are Okabe and Ito's that stand out on white and on black paper.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANEL = (3.55, 2.7)  # inches: a phone is about so wide
SQUARE = (3.55, 3.7)
_FEW = 12  # markers that a line has about
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
    """Refuse before anything is computed what could not be drawn after it."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{flag} {path}: the name must end in {', '.join(FORMATS)}")
    require_library("matplotlib", flag)


def require_library(name: str, what: str) -> None:
    """A library of the extra ``analysis``; ``what`` needs it."""
    if importlib.util.find_spec(name) is None:
        library = {"sklearn": "scikit-learn"}.get(name, name)
        raise UsageError(f"{what} needs {library}: pip install 'fairseq_stochattn[analysis]'")


@contextmanager
def house_style() -> Iterator[None]:
    """Within, figures are drawn alike, whatever the user's own settings."""
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS, "backend": "agg"}):
        yield


def panels(
    count: int, size: tuple[float, float] = PANEL, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels of a size in inches, row by row."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def save(figure: Figure, path: Path) -> None:
    """By the ending of the name; written whole or not at all."""
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=150)


def look(index: int, points: int) -> dict[str, Any]:
    """How the line of this number looks: colour, dashes and markers, no two alike in 140."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
        "markevery": max(1, points // _FEW),
        "linewidth": 1.5,
    }


def label_ends(ax: Axes, labels: Sequence[tuple[float, str, str]], lines: int = 1) -> None:
    """Write (height, text, colour) beside the right ends, in their order and not overlapping.

    Each text has so many ``lines``. Call it when all is drawn: it fixes the limits of the axes.
    """
    low, high = ax.get_ylim()
    ax.set_ylim(low, high)
    room = ax.get_window_extent().height / ax.figure.dpi * 72  # points
    gap = 10.5 * lines / room
    places: list[float] = []
    wanted = sorted((((y - low) / (high - low), text, colour) for y, text, colour in labels))
    for height, _, _ in wanted:
        places.append(max(height, places[-1] + gap) if places else height)
    over = max(0.0, places[-1] - 1.0) if places else 0.0
    for index in range(len(places) - 1, -1, -1):
        ceiling = places[index + 1] - gap if index + 1 < len(places) else places[index] - over
        places[index] = min(places[index], ceiling)
    for place, (_, text, colour) in zip(places, wanted, strict=True):
        ax.annotate(
            text,
            (1.02, place),
            xycoords="axes fraction",
            va="center",
            color=colour,
            fontsize=8,
            annotation_clip=False,
        )
