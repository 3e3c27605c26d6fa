"""A self-contained HTML page from small pieces: no scripts, nothing from the network.

Every function returns HTML; text is escaped where it enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

_STYLE = "page.css"


def document(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """The page; sections are (heading, HTML)."""
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
    return f"""<!DOCTYPE html>
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


def shown(value: Any) -> str:
    """A value of a configuration or a measure, for the reader."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def hint(text: str, command: str = "") -> str:
    """One line on a part that is missing, and the command that makes it."""
    code = f" <code>{escape(command)}</code>" if command else ""
    return f'<p class="hint">{escape(text)}{code}</p>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in pairs
    )
    return f'<dl class="facts">{rows}</dl>'


def details(summary: str, html: str) -> str:
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
    """The first cell of a row is its header, columns in ``numeric`` are set to the right.

    On narrow screens the rows of a ``wide`` table become blocks, each cell with its column's name.
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
    # Roles are named since a table that is laid out as blocks loses its own.
    return (
        f'<div class="scroll"><table role="table"{" class=wide" if wide else ""}>'
        f"<caption>{escape(caption)}</caption>"
        f'<thead role="rowgroup"><tr role="row">{columns}</tr></thead>'
        f'<tbody role="rowgroup">\n{body}</tbody></table></div>'
    )


class Html:
    """A cell that is HTML already."""

    def __init__(self, html: str) -> None:
        self.html = html


def titled(title: str, below: str) -> Html:
    """A cell of two lines."""
    small = f"<small>{escape(below)}</small>" if below else ""
    return Html(f"{escape(title)}{small}")


def bar(share: float) -> Html:
    """A share of 1 as a number and as a bar of that length."""
    width = 100 * min(1.0, max(0.0, share))
    return Html(
        f'{share:.2f}<span class="bar" aria-hidden="true">'
        f'<span style="width:{width:.0f}%"></span></span>'
    )


def picture(svg: str, caption: str, described: str, paper: bool = False) -> str:
    """An inline SVG; ``described`` says in words what it shows. ``paper`` keeps it on white."""
    kind = "picture paper" if paper else "picture"
    return (
        f'<figure class="{kind}"><div class="scroll" role="img" tabindex="0" '
        f'aria-label="{escape(described, quote=True)}">{svg}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def gallery(pictures: Iterable[str]) -> str:
    return f'<div class="gallery">{"".join(pictures)}</div>'
