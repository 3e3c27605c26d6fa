"""Reads JSON that other programs or people have written, which may be damaged or hostile."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from .errors import InputError

# No file of this package is nested deeper than ten levels. Code that handles a deeper value, such
# as repr, may exceed Python's limit of recursion.
MAX_DEPTH = 100


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Every problem is a ``ValueError``, including nesting that is too deep.

    Its message begins with a verb, so that the caller can put the name of the file before it.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    opening = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, opening)) > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
    return value


def read_json(path: Path) -> Any:
    """Read the JSON value in a file. Raises an ``InputError`` that names the file."""
    try:
        text = path.read_text(encoding="utf-8")
        value = parse_json(text)
        if "\\u" in text:
            # An escape can encode half of a surrogate pair, which no file can be written with.
            json.dumps(value, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: it is not UTF-8") from None
    except UnicodeEncodeError:
        raise InputError(f"{path} cannot be read: it contains half a character") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path} cannot be read: it {error}") from None
    return value


def is_finite_number(value: object) -> bool:
    """Whether a JSON value is a number, neither NaN nor too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def short(value: object, limit: int = 60) -> str:
    """A value as text for an error message, without quotes, cut after ``limit`` characters."""
    try:
        text = ascii(value)[1:-1] if isinstance(value, str) else ascii(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than ``depth`` levels."""
    level = [value]
    for _ in range(depth):
        level = [
            child
            for container in level
            if isinstance(container, (dict, list))
            for child in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return False
    return any(isinstance(x, (dict, list)) for x in level)
