"""Figures as SVG inside a page: they take the page's text colour, so they suit light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairseq_stochattn.analysis.drawing import COLOURS, PANEL, panels
from fairseq_stochattn.analysis.page import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REFERENCE = re.compile(r"(\bid=\"|url\(#|href=\"#)")


def inline_svg(figure: Figure, name: str) -> str:
    """The ``<svg>`` element of a figure without background; black is the colour of the text.

    Its text is text, in the reader's fonts. ``name`` keeps the ids of several figures apart. What
    the picture shows is said beside it, so it is hidden from screen readers.
    """
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace(": #000000", ": currentColor")
    # The blue is too dark for dark pages.
    svg = svg.replace(f": {COLOURS[0].lower()}", f": var(--blue, {COLOURS[0]})")
    svg = _REFERENCE.sub(rf"\g<1>{name}-", svg)
    return svg.replace("<svg", '<svg aria-hidden="true" fill="currentColor"', 1).strip()


def panel(
    name: str,
    draw: Callable[[Axes], None],
    caption: str,
    described: str,
    size: tuple[float, float] = PANEL,
) -> str:
    """A picture of one panel for a page."""
    figure, (ax,) = panels(1, size)
    draw(ax)
    return picture(inline_svg(figure, name), caption, described)
