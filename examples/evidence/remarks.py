"""Remarks below the tables: everything about the results that a reader should know."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import formats
from comparison import FEWEST_SEEDS, bleu
from layout import Layout
from result_files import ALL_TASKS, Result
from sections import Section, comparable
from settings_table import flat_settings

BLEU_TOLERANCE = 0.05  # points, between the reported BLEU and that of the statistics


def remarks(layout: Layout, sections: Sequence[Section], results: Sequence[Result]) -> list[str]:
    """Return the remarks about the results of a suite, one sentence or two each."""
    found = [
        *(remark for section in sections for remark in _about_seeds(section)),
        *(remark for section in sections for remark in _about_pairs(section)),
        *(remark for section in sections for remark in _about_gaps(section)),
        *(remark for result in results for remark in _about_values(layout, result)),
        *_about_absence(layout, results),
        *_about_repetition(layout, results),
        *_about_chance(sections),
    ]
    notes = [f"{layout.methods[name]}: {note}" for name, note in layout.notes.items()]
    return [*notes, *found]


def _where(section: Section) -> str:
    return f"{section.task}, " if section.task else ""


def _about_seeds(section: Section) -> Iterator[str]:
    """Yield which seeds of which method are missing."""
    wanted = section.layout.seeds
    for method, label in section.layout.methods.items():
        present = section.group.of(method)
        missing = [str(seed) for seed in wanted if seed not in present]
        if present and missing:
            count = f"{len(present)} of {formats.plural(len(wanted), 'seed')}"
            yield f"{_where(section)}{label}: {count}; missing: {', '.join(missing)}."


def _about_pairs(section: Section) -> Iterator[str]:
    """Yield which comparisons have too few common seeds for an interval."""
    for method in section.layout.others:
        comparisons = [one for one in section.comparisons if one.method == method]
        few = [one for one in comparisons if one.difference is None]
        if few:
            names = ", ".join(one.measure.label for one in few)
            yield (
                f"{_where(section)}{section.layout.methods[method]}: no interval for {names}, "
                f"because fewer than {FEWEST_SEEDS} seeds have a value here and for "
                f"{section.layout.methods[section.layout.baseline]}."
            )
        for seed, run in section.group.of(method).items():
            base = section.group.of(section.layout.baseline).get(seed)
            arrays = [one.bleu_statistics is not None for one in (run, base) if one]
            if base and all(arrays) and not comparable(run, base):
                yield (
                    f"{_where(section)}{section.layout.methods[method]}, seed {seed}: no bootstrap,"
                    f" because {len(run.bleu_statistics)} sentences were translated instead of "
                    f"{len(base.bleu_statistics)}."
                )


def _about_gaps(section: Section) -> Iterator[str]:
    """Yield where a measure exists for some seeds of a method only."""
    if section.task == ALL_TASKS:
        return
    for method in section.layout.methods:
        for measure in section.measures:
            runs = section.group.of(method).values()
            missing = [run.path.name for run in runs if measure.name not in run.measures]
            if missing and len(missing) < len(runs):
                names = ", ".join(f"`{name}`" for name in missing)
                yield f"{names}: no value of {measure.label}."


def _about_values(layout: Layout, result: Result) -> Iterator[str]:
    """Yield which reported values of a result are not finite or contradict each other."""
    where = f"`{result.path.name}`"
    for measure in layout.measures:
        value = result.measures.get(measure.name, 0.0)
        if not math.isfinite(value):
            yield f"{where}: {measure.label} is not a finite number and is left out."
    reported = result.measures.get("bleu", math.nan)
    if result.bleu_statistics is not None and math.isfinite(reported):
        recomputed = bleu(result.bleu_statistics.sum(axis=0))
        if abs(recomputed - reported) > BLEU_TOLERANCE:
            yield (
                f"{where}: BLEU is {reported:.2f}, but its statistics give {recomputed:.2f}. "
                "The bootstrap uses the statistics."
            )


def _about_absence(layout: Layout, results: Sequence[Result]) -> Iterator[str]:
    """Yield which measures the suite wants but no result has."""
    known = {name for result in results for name in result.measures}
    for measure in layout.measures:
        if measure.name not in known:
            yield f"No result has the measure `{measure.name}`."


def _about_repetition(layout: Layout, results: Sequence[Result]) -> Iterator[str]:
    """Yield where runs that should differ only in their seed differ in more."""
    for method, label in layout.methods.items():
        for task in layout.tasks or (None,):
            runs = [run for run in results if (run.method, run.task) == (method, task)]
            if len({str(flat_settings(run.settings)) for run in runs}) > 1:
                place = f"{task}, " if task else ""
                yield f"{place}{label}: the settings are not the same for all seeds."
    kinds: list[tuple[str, Callable[[Result], str]]] = [
        ("commits", lambda run: run.commit),
        ("versions", lambda run: ", ".join(f"{k} {v}" for k, v in sorted(run.versions.items()))),
    ]
    for name, value in kinds:
        different = sorted({value(run) for run in results} - {""})
        if len(different) > 1:
            yield f"The results come from different {name}: {'; '.join(different)}."
    machines = sorted({run.machine or "an unrecorded one" for run in results})
    if len(machines) > 1:
        yield (
            f"The results come from different processors: {'; '.join(machines)}. Ratios of times "
            "compare only runs on the same one."
        )


def _about_chance(sections: Sequence[Section]) -> Iterator[str]:
    """Yield how many intervals would exclude 0 by chance."""
    counted = [section for section in sections if section.task != ALL_TASKS]
    intervals = [
        one for section in counted for one in section.comparisons if one.difference is not None
    ]
    if intervals:
        bold = sum(bool(one.verdict) for one in intervals)
        yield (
            f"{bold} of {formats.plural(len(intervals), 'interval')} exclude 0. If no method had "
            f"any effect, about {len(intervals) / 20:.1f} would do so by chance."
        )
