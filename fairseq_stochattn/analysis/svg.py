"""Converts figures to inline SVG in the text colour of the page, which may be light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .drawing import COLOURS, PANEL, panels
from .page import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REFERENCE = re.compile(r"(\bid=\"|url\(#|href=\"#)")


def inline_svg(figure: Figure, name: str) -> str:
    """The ``<svg>`` element of a figure, without background.

    Whatever is black in the figure has the text colour of the page. Text stays text, in the
    reader's fonts. ``name`` makes the ids unique among several figures. The element is hidden from
    screen readers, because ``page.picture`` adds a description.
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
    # This blue is too dark on dark pages; page.css defines a lighter one.
    svg = svg.replace(f": {COLOURS[0].lower()}", f": var(--blue, {COLOURS[0]})")
    svg = _REFERENCE.sub(rf"\g<1>{name}-", svg)
    return svg.replace("<svg", '<svg aria-hidden="true" fill="currentColor"', 1).strip()


def panel(
    name: str,
    draw: Callable[[Axes], None],
    caption: str,
    description: str,
    size: tuple[float, float] = PANEL,
) -> str:
    """HTML for a figure with one panel, drawn by ``draw``."""
    figure, (ax,) = panels(1, size)
    draw(ax)
    return picture(inline_svg(figure, name), caption, description)
