"""Reads the results of a suite: one JSON file per method and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from comparison import check_bleu_statistics
from layout import Layout
from suite import FIRST_TUNING_SEED

from fairseq_stochattn.core.errors import InputError

TUNING = "tuning"
ALL_TASKS = "mean over tasks"


@dataclass(frozen=True)
class Result:
    """One run: its identity, its measures and its costs. Unknown numbers are NaN."""

    path: Path
    suite: str
    task: str | None
    method: str  # for a tuning run: the variant, as in the file name
    seed: int
    split: str
    measures: Mapping[str, float]
    meters: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    machine: str = ""  # the processor; unknown for early results
    cpu_seconds: float = math.nan
    step_seconds: float = math.nan
    evaluation_cpu_seconds: float = math.nan
    bleu_statistics: np.ndarray | None = None  # (sentences, 10)


class Group:
    """The results of one task of a suite, by method and seed."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.runs: dict[str, dict[int, Result]] = {}
        for result in results:
            self.runs.setdefault(result.method, {})[result.seed] = result

    def of(self, method: str) -> dict[int, Result]:
        """Return the results of a method by seed, in the order of the seeds."""
        return dict(sorted(self.runs.get(method, {}).items()))

    def values(self, method: str, measure: str, scale: float = 1.0) -> dict[int, float]:
        """Return a measure of a method by seed. Seeds whose result lacks it are left out."""
        runs = self.of(method).items()
        return {
            seed: scale * run.measures[measure] for seed, run in runs if measure in run.measures
        }

    def has(self, measure: str) -> bool:
        """Whether any result has the measure."""
        return any(measure in run.measures for runs in self.runs.values() for run in runs.values())


def read_results(folder: Path, layout: Layout) -> list[Result]:
    """Return the results of a suite on test data, from ``folder/SUITE``."""
    results = [read_result(path, layout) for path in _json_files(folder / layout.name)]
    for result in results:
        _require(result, result.split == "test", f'split is {result.split!r}, not "test"')
        known = ", ".join(layout.methods)
        _require(result, result.method in layout.methods, f"method is none of the suite's: {known}")
        seeds = ", ".join(map(str, layout.seeds))
        _require(result, result.seed in layout.seeds, f"seed is none of the suite's: {seeds}")
    return results


def read_tuning(folder: Path, layout: Layout) -> list[Result]:
    """Return the tuning runs of a suite on validation data, from ``folder/SUITE/tuning``."""
    paths = _json_files(folder / layout.name / TUNING)
    results = [read_result(path, layout, tuning=True) for path in paths]
    for result in results:
        _require(result, result.split == "valid", f'split is {result.split!r}, not "valid"')
        meant = f"seed {result.seed}: tuning runs have seeds from {FIRST_TUNING_SEED} on"
        _require(result, result.seed >= FIRST_TUNING_SEED, meant)
    return results


def _json_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def read_result(path: Path, layout: Layout, tuning: bool = False) -> Result:
    """Return one result. An error names the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise InputError("is not a JSON object")
        result = _result(path, content)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not JSON: it is not text") from None
    except KeyError as error:
        raise InputError(f"{path}: {error} is missing") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _require(result, result.suite == layout.name, f"suite is {result.suite!r}")
    if layout.tasks or result.task is not None:
        known = ", ".join(layout.tasks) or "none"
        _require(
            result,
            result.task in layout.tasks,
            f"task {result.task!r} is none of the suite's: {known}",
        )
    prefix = f"{result.task}-" if result.task else ""
    suffix = f"-seed{result.seed}"
    stem = path.stem
    if tuning and stem.startswith(prefix) and stem.endswith(suffix):
        variant = stem[len(prefix) : -len(suffix)]
        return Result(**{**vars(result), "method": variant})
    expected = f"{prefix}{result.method}{suffix}"
    _require(result, stem == expected, f"holds the result {expected}.json")
    return result


def _result(path: Path, content: Mapping[str, Any]) -> Result:
    seed = content["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InputError(f"seed is {seed!r}, not an integer")
    statistics = content.get("bleu_statistics")
    try:
        array = None if statistics is None else check_bleu_statistics(statistics)
    except InputError as error:
        raise InputError(f"bleu_statistics {error}") from None
    return Result(
        path=path,
        suite=content["suite"],
        task=content.get("task"),
        method=content["method"],
        seed=seed,
        split=content["split"],
        measures=_numbers("measures", content["measures"]),
        meters=_numbers("meters", content.get("meters") or {}),
        settings=content.get("settings") or {},
        versions=content.get("versions") or {},
        commit=str(content.get("commit") or ""),
        machine=str(content.get("machine") or ""),
        cpu_seconds=_number("cpu_seconds", content.get("cpu_seconds")),
        step_seconds=_number("step_seconds", content.get("step_seconds")),
        evaluation_cpu_seconds=_number(
            "evaluation_cpu_seconds", content.get("evaluation_cpu_seconds")
        ),
        bleu_statistics=array,
    )


def _numbers(entry: str, table: object) -> dict[str, float]:
    if not isinstance(table, dict):
        raise InputError(f"{entry} is not a table of numbers")
    return {name: _number(f"{entry}.{name}", value) for name, value in table.items()}


def _number(entry: str, value: object) -> float:
    """Return the number; NaN for null."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{entry} is {value!r}, not a number")
    return float(value)


def _require(result: Result, condition: bool, problem: str) -> None:
    if not condition:
        raise InputError(f"{result.path}: {problem}")


def groups(results: Sequence[Result], layout: Layout) -> dict[str, Group]:
    """Return the results by task, and for several tasks also their mean. One task is named ""."""
    if not layout.tasks:
        return {"": Group(results)}
    by_task = {
        task: Group(result for result in results if result.task == task) for task in layout.tasks
    }
    if len(layout.tasks) > 1:
        by_task[ALL_TASKS] = _mean_over_tasks(list(by_task.values()))
    return by_task


def _mean_over_tasks(tasks: Sequence[Group]) -> Group:
    """Return the mean of every measure that all tasks have, for runs of all tasks."""
    means = []
    for method, runs in tasks[0].runs.items():
        for seed in runs:
            found = [group.of(method).get(seed) for group in tasks]
            if all(found):
                means.append(_mean(found))
    return Group(means)


def _mean(runs: Sequence[Result]) -> Result:
    first = runs[0]
    shared = [name for name in first.measures if all(name in run.measures for run in runs)]
    measures = {name: sum(run.measures[name] for run in runs) / len(runs) for name in shared}
    costs = {
        name: sum(getattr(run, name) for run in runs)
        for name in ("cpu_seconds", "evaluation_cpu_seconds")
    }
    identity = (first.path, first.suite, ALL_TASKS, first.method, first.seed, first.split)
    machine = " and ".join(sorted({run.machine for run in runs}))
    return Result(*identity, measures, machine=machine, **costs)
