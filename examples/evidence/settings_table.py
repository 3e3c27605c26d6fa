"""The tables of settings: those of every method, and every variant that was tried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import formats
from comparison import summarise
from layout import Layout
from result_files import Group, Result

TRAIN = "train"  # flags of this entry are shown without the name of the entry


def flat_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as name → text, sorted by name, without the seed.

    A list of flags becomes one entry per flag. If a flag occurs twice, the last one counts, as on
    the command line.
    """
    flat: dict[str, str] = {}
    for entry, value in settings.items():
        if isinstance(value, list) and any(str(word).startswith("--") for word in value):
            prefix = "" if entry == TRAIN else f"{entry} "
            flat |= {f"{prefix}{flag}": text for flag, text in _flags(value).items()}
        else:
            flat[entry] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return {name: flat[name] for name in sorted(flat) if name not in ("seed", "--seed")}


def _flags(words: Sequence[Any]) -> dict[str, str]:
    """Return flag → its values, joined by spaces. Words before the first flag belong to none."""
    flags: dict[str, list[str]] = {}
    name = ""
    for word in map(str, words):
        if word.startswith("--"):
            name = word
            flags[name] = []
        else:
            flags.setdefault(name, []).append(word)
    return {name: " ".join(values) for name, values in flags.items()}


def _differing(runs: Sequence[Result]) -> list[str]:
    """Return the names of the settings that are not the same in all runs."""
    settings = [flat_settings(run.settings) for run in runs]
    names = sorted({name for one in settings for name in one})
    return [name for name in names if len({one.get(name) for one in settings}) > 1]


def _shown(run: Result, names: Sequence[str]) -> str:
    """Return the named settings of a run as one line."""
    settings = flat_settings(run.settings)
    return formats.settings({name: settings[name] for name in names if name in settings})


def _by_task(layout: Layout, runs: Sequence[Result]) -> dict[str, Group]:
    """Return the runs by task; the only task of a suite without tasks is named ""."""
    tasks = layout.tasks or (None,)
    return {task or "": Group(run for run in runs if run.task == task) for task in tasks}


def settings_table(layout: Layout, results: Sequence[Result]) -> str:
    """Return a table of the settings in which the methods differ; an empty string if none do."""
    rows = []
    for task, group in _by_task(layout, results).items():
        names = _differing([run for runs in group.runs.values() for run in runs.values()])
        for method, label in layout.methods.items():
            runs = list(group.of(method).values())
            if runs and names:
                rows.append([*_place(task), formats.escape(label), _shown(runs[0], names)])
    return (
        formats.table([*_place(layout.tasks and "task"), "method", "settings"], rows)
        if rows
        else ""
    )


def variants_table(layout: Layout, tuning: Sequence[Result], results: Sequence[Result]) -> str:
    """Return a table of every variant that was tried, with its mean over seeds.

    It is an empty string if no variant was tried.
    """
    found = {name for run in tuning for name in run.measures}
    measures = [measure for measure in layout.measures if measure.name in found]
    tested = _by_task(layout, results)
    rows = []
    for task, group in _by_task(layout, tuning).items():
        names = _differing([run for runs in group.runs.values() for run in runs.values()])
        for variant in sorted(group.runs):
            runs = group.of(variant)
            first = next(iter(runs.values()))
            cells = []
            for one in measures:
                values = group.values(variant, one.name, one.scale)
                cells.append(formats.mean_sd(summarise(values), one.digits, len(runs)))
            seeds = ", ".join(map(str, runs))
            chosen = "yes" if _same_training(first, tested[task].of(variant)) else ""
            name = formats.escape(variant)
            rows.append([*_place(task), name, _shown(first, names), seeds, *cells, chosen])
    headings = [formats.escape(measure.heading) for measure in measures]
    header = ["variant", "settings", "seeds", *headings, "in the tables above"]
    return formats.table([*_place(layout.tasks and "task"), *header], rows) if rows else ""


def _place(task: object) -> list[str]:
    """Return a list with the cell for the task; empty for a suite without tasks."""
    return [formats.escape(str(task))] if task else []


def _same_training(variant: Result, tested: Mapping[int, Result]) -> bool:
    """Whether the method of this name was tested with the variant's training settings.

    The settings of the evaluation differ in any case: they name the split.
    """
    wanted = variant.settings.get(TRAIN, variant.settings)
    return any(run.settings.get(TRAIN, run.settings) == wanted for run in tested.values())
