"""Building blocks for a self-contained HTML page, which has no scripts and loads no other files.

Every function returns HTML. Arguments named ``html`` or ``svg`` are inserted as they are; all other
texts are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

_STYLE = "page.css"


def document(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """The whole page. ``lead`` is the text below the title; sections are pairs (heading, HTML)."""
    style = files(__package__).joinpath(_STYLE).read_text(encoding="utf-8")
    sections = list(sections)
    anchors = [f"section-{number}" for number in range(1, len(sections) + 1)]
    links = "".join(
        f'<li><a href="#{anchor}">{escape(heading)}</a></li>'
        for anchor, (heading, _) in zip(anchors, sections, strict=True)
    )
    body = "".join(
        f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(heading)}</h2>{html}'
        "</section>\n"
        for anchor, (heading, html) in zip(anchors, sections, strict=True)
    )
    html = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="stochattn-report">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p>{escape(lead)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main>
{body}</main>
</body>
</html>
"""
    # Paths with undecodable bytes, and settings of damaged checkpoints, have lone surrogates.
    return html.encode(errors="replace").decode()


def shown(value: Any) -> str:
    """A setting or a measurement as text, with four digits for floats and a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def hint(text: str, command: str = "") -> str:
    """A line that names a missing part of the page and the command that creates it."""
    code = f" <code>{escape(command)}</code>" if command else ""
    return f'<p class="hint">{escape(text)}{code}</p>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """A list of names and values."""
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in pairs
    )
    return f'<dl class="facts">{rows}</dl>'


def details(summary: str, html: str) -> str:
    """HTML that is hidden until the reader opens it."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    numeric: Sequence[int] = (),
    wide: bool = False,
) -> str:
    """A table in which the first cell of each row is a header and ``numeric`` columns align right.

    On narrow screens each row of a ``wide`` table becomes a block with the column names inside.
    """

    def cell(column: int, value: object) -> str:
        kind = ' class="number"' if column in numeric else ""
        text = value.html if isinstance(value, Html) else escape(str(value))
        label = escape(head[column], quote=True)
        if column == 0:
            return f'<th scope="row" role="rowheader" data-label="{label}"{kind}>{text}</th>'
        return f'<td role="cell" data-label="{label}"{kind}><span>{text}</span></td>'

    columns = "".join(
        f'<th scope="col" role="columnheader"{" class=number" if i in numeric else ""}>'
        f"{escape(name)}</th>"
        for i, name in enumerate(head)
    )
    body = "".join(
        f'<tr role="row">{"".join(cell(i, value) for i, value in enumerate(row))}</tr>\n'
        for row in rows
    )
    # Explicit roles, because browsers drop the implicit roles if rows are laid out as blocks.
    return (
        f'<div class="scroll"><table role="table"{" class=wide" if wide else ""}>'
        f"<caption>{escape(caption)}</caption>"
        f'<thead role="rowgroup"><tr role="row">{columns}</tr></thead>'
        f'<tbody role="rowgroup">\n{body}</tbody></table></div>'
    )


class Html:
    """A table cell that is already HTML and must not be escaped."""

    def __init__(self, html: str) -> None:
        self.html = html


def titled(title: str, below: str) -> Html:
    """A table cell with a title and a smaller line below it."""
    small = f"<small>{escape(below)}</small>" if below else ""
    return Html(f"{escape(title)}{small}")


def marked_words(text: str, words: Sequence[tuple[str, bool]]) -> Html:
    """A table cell with a text and, below it, words of which some are marked."""
    if not words:
        return Html(escape(text))
    shown_words = " ".join(
        f"<mark>{escape(word)}</mark>" if marked else escape(word) for word, marked in words
    )
    return Html(f"{escape(text)}<small>{shown_words}</small>")


def bar(share: float) -> Html:
    """A share between 0 and 1, as a number and as a bar."""
    width = 100 * min(1.0, max(0.0, share))
    return Html(
        f'{share:.2f}<span class="bar" aria-hidden="true">'
        f'<span style="width:{width:.0f}%"></span></span>'
    )


def picture(svg: str, caption: str, description: str, paper: bool = False) -> str:
    """An inline SVG with a caption.

    Screen readers read ``description`` aloud. With ``paper``, the background is always white.
    """
    kind = "picture paper" if paper else "picture"
    return (
        f'<figure class="{kind}"><div class="scroll" role="img" tabindex="0" '
        f'aria-label="{escape(description, quote=True)}">{svg}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def gallery(pictures: Iterable[str]) -> str:
    """Pictures side by side, as many as fit into the width of the screen."""
    return f'<div class="gallery">{"".join(pictures)}</div>'
