"""Reads the file of a suite and writes out what it abbreviates.

- ``extends = "SUITE"`` takes over the entries of another suite, except its title, text, methods
  (but the baseline), variants and rows of the README. Own entries replace those of the other suite.
  ``only_tasks`` names the tasks to keep.
- ``variant_of`` in the table of a method names a method of this suite or of the other one, whose
  training flags are put before those of this method.
- ``[sweeps.NAME]`` stands for one method per value of a flag: ``label``, the method that is varied,
  ``symbol``, the name of the varied number, ``flag`` and ``values``; and ``variant_of`` or
  ``train``, the flags that all values share. The methods are called NAME_VALUE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from fairseq_stochattn.core.errors import InputError

NOT_INHERITED = ("title", "text", "methods", "tuning", "sweeps", "readme", "name")
SWEEP_ENTRIES = {"label", "symbol", "flag", "values", "variant_of", "train"}


@dataclass(frozen=True)
class Sweep:
    """The methods that differ in one number: value, as written in the suite → method."""

    label: str
    symbol: str
    methods: dict[str, str]


def read_content(path: Path) -> dict[str, Any]:
    """Return the content of a suite file, with all methods written out."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    known: dict[str, Any] = {}  # methods that are not of this suite
    if (base := content.pop("extends", None)) is not None:
        other = _read_other(path, base)
        known = other["methods"]
        baseline = content.get("baseline", other["baseline"])
        if baseline not in known | content.get("methods", {}):
            raise InputError(f"baseline names {baseline!r}, which is no method of {base}")
        inherited = {name: value for name, value in other.items() if name not in NOT_INHERITED}
        own = content.get("methods", {})
        first = {} if baseline in own else {baseline: known[baseline]}
        content = {**inherited, **content, "methods": {**first, **own}}
    if (tasks := content.pop("only_tasks", None)) is not None:
        content["tasks"] = _chosen(tasks, content.get("tasks", {}))
    methods = content["methods"]
    for name, table in content.get("sweeps", {}).items():
        for method, values in _expanded(name, table).items():
            if method in methods:
                raise InputError(f"sweeps.{name}: there is a method {method} already")
            methods[method] = values
    content["methods"] = _written_out(methods, known)
    if "tuning" in content:
        content["tuning"] = _written_out(content["tuning"], content["methods"])
    return content


def sweeps_of(content: Mapping[str, Any]) -> tuple[Sweep, ...]:
    """Return the sweeps of a suite file."""
    return tuple(
        Sweep(
            label=table.get("label", name),
            symbol=table["symbol"],
            methods={str(value): f"{name}_{value}" for value in table["values"]},
        )
        for name, table in content.get("sweeps", {}).items()
    )


def _read_other(path: Path, name: str) -> dict[str, Any]:
    other = path.with_name(f"{name}.toml")
    if other == path or not other.is_file():
        raise InputError(f"extends names {name!r}, but there is no other suite of this name")
    if "extends" in tomllib.loads(other.read_text(encoding="utf-8")):
        raise InputError(f"extends names {name!r}, which extends a suite itself")
    return read_content(other)


def _chosen(names: list[str], tasks: Mapping[str, Any]) -> dict[str, Any]:
    for name in names:
        if name not in tasks:
            raise InputError(f"only_tasks names {name!r}, which is not one of {', '.join(tasks)}")
    return {name: tasks[name] for name in names}


def _expanded(name: str, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the methods of one sweep."""
    if unknown := set(table) - SWEEP_ENTRIES:
        raise InputError(f"sweeps.{name} has no entry {', '.join(sorted(unknown))}")
    for entry in ("symbol", "flag", "values"):
        if entry not in table:
            raise InputError(f"sweeps.{name}.{entry} is missing")
    values, label = table["values"], table.get("label", name)
    numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    if not values or numbers != values or len(set(values)) < len(values):
        raise InputError(f"sweeps.{name}.values must be different numbers")
    shared = {key: table[key] for key in ("variant_of",) if key in table}
    return {
        f"{name}_{value}": {
            **shared,
            "label": f"{label}, {table['symbol']} = {value}",
            "train": [*table.get("train", ()), table["flag"], str(value)],
        }
        for value in values
    }


def _written_out(methods: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the methods with the training flags of those that they are variants of."""
    written: dict[str, Any] = {}
    for name, table in methods.items():
        table = dict(table)
        if (base := table.pop("variant_of", None)) is not None:
            if base not in known and base not in written:
                raise InputError(f"{name}: variant_of names {base!r}, which is no method above it")
            flags = {**known, **written}[base].get("train", ())
            table["train"] = [*flags, *table.get("train", ())]
        written[name] = table
    return written
