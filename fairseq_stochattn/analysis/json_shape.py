"""Reads JSON files that other commands wrote, and checks that they have the expected shape.

A shape is a function of a value and its place in the file. It raises ``ShapeError`` if the value
differs. The functions here build shapes: ``table({"loss": number}, {"name": text})``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.json_input import is_finite_number, read_json, short

Shape = Callable[[Any, str], None]
LARGEST = 1e30  # larger numbers are mistakes, which no figure can show


class ShapeError(Exception):
    """A value of a JSON file differs from the expected shape."""


def read_shaped(path: Path, shape: Shape, writer: str) -> Any:
    """The content of a file that the command ``writer`` wrote. Raises ``InputError`` otherwise."""
    content = read_json(path)
    try:
        shape(content, "")
    except ShapeError as error:
        raise InputError(f"{path} is not what {writer} writes: {error}") from None
    return content


def number(value: Any, place: str) -> None:
    """A finite number of usual size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _differs(place, "a number")
    if not is_finite_number(value) or abs(value) > LARGEST:
        raise _differs(place, "a finite number of usual size")


def integer(value: Any, place: str) -> None:
    """A whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _differs(place, "a whole number")
    number(value, place)


def text(value: Any, place: str) -> None:
    """A string."""
    if not isinstance(value, str):
        raise _differs(place, "a text")


def scalar(value: Any, place: str) -> None:
    """A string, a number, a truth value or null."""
    if value is not None and not isinstance(value, (str, bool)):
        number(value, place)


def optional(shape: Shape) -> Shape:
    """The shape, or null."""

    def check(value: Any, place: str) -> None:
        if value is not None:
            shape(value, place)

    return check


def list_of(shape: Shape, least: int = 0) -> Shape:
    """A list with at least ``least`` entries of one shape."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise _differs(place, "a list")
        if len(value) < least:
            raise ShapeError(f"{_name(place)} has {len(value)} entries, expected {least} or more")
        for index, entry in enumerate(value):
            shape(entry, f"{place}[{index}]")

    return check


def mapping_of(shape: Shape) -> Shape:
    """An object with any names whose values all have one shape."""

    def check(value: Any, place: str) -> None:
        _require_object(value, place)
        for name, entry in value.items():
            shape(entry, f"{place}.{short(name)}")

    return check


def table(needed: Mapping[str, Shape], others: Mapping[str, Shape] | None = None) -> Shape:
    """An object with all names of ``needed``, and any of ``others``; further names are ignored."""

    def check(value: Any, place: str) -> None:
        _require_object(value, place)
        for name, shape in {**needed, **(others or {})}.items():
            if name in value:
                shape(value[name], f"{place}.{name}")
            elif name in needed:
                raise ShapeError(f"{_name(place)} has no {name}")

    return check


def equally_long(needed: Mapping[str, Shape]) -> Shape:
    """A table of lists that have the same length."""
    checked = table(needed)

    def check(value: Any, place: str) -> None:
        checked(value, place)
        if len({len(value[name]) for name in needed}) > 1:
            raise ShapeError(f"{', '.join(needed)} of {_name(place)} have different lengths")

    return check


def _require_object(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise _differs(place, "an object")


def _differs(place: str, expected: str) -> ShapeError:
    return ShapeError(f"{_name(place)} is not {expected}")


def _name(place: str) -> str:
    return place.lstrip(".") or "it"
