"""Numbers and tables as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from comparison import Difference, Ratio, Summary

NOTHING = "–"


def escape(text: str) -> str:
    """Return text that can stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float, digits: int) -> str:
    """Return a number with a true minus sign; a dash if it is not finite."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else NOTHING


def signed(value: float, digits: int) -> str:
    """Return a number with its sign, also if it is rounded to 0."""
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return f"{sign}{abs(value):.{digits}f}"


def significant(value: float) -> str:
    """Return a number with three significant digits."""
    if not math.isfinite(value):
        return NOTHING
    if value and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.2e}".replace("-", "−")
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return number(value, digits)


def mean_sd(summary: Summary | None, digits: int, expected: int) -> str:
    """Return mean ± sd; with the number of values if there are fewer than ``expected``."""
    if summary is None:
        return NOTHING
    text = number(summary.mean, digits)
    if math.isfinite(summary.sd):
        text += f" ± {number(summary.sd, digits)}"
    return text if summary.count >= expected else f"{text} ({summary.count} of {expected})"


def difference(value: Difference | None, digits: int) -> str:
    """Return a difference with its interval, bold where the interval excludes 0."""
    if value is None:
        return NOTHING
    low, high = signed(value.low, digits), signed(value.high, digits)
    text = f"{signed(value.mean, digits)} [{low}, {high}]"
    return f"**{text}**" if value.excludes_zero else text


def ratio(value: Ratio | None) -> str:
    """Return the median ratio, with minimum and maximum if they differ from it."""
    if value is None:
        return NOTHING
    text = f"{value.median:.2f}"
    spread = f"{value.low:.2f}–{value.high:.2f}"
    return text if spread == f"{text}–{text}" else f"{text} ({spread})"


def seeds(count: int, wanted: int) -> str:
    """Return the number of seeds; "3 of 5 seeds" if some are missing."""
    return str(count) if count >= wanted else f"{count} of {wanted} seeds"


def settings(values: Mapping[str, str]) -> str:
    """Return settings (name → value) as one line; a dash if there are none."""
    texts = [
        f"{name} {value}" if "--" in name else f"{name} = {value}" for name, value in values.items()
    ]
    return ", ".join(f"`{escape(text).replace('`', chr(39))}`" for text in texts) or NOTHING


def plural(count: int, word: str) -> str:
    """Return the number and the word, with an s unless the number is 1."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
