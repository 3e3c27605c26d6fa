"""The pages of the evidence: one per suite, an index, and the table of the project's README."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import formats
from comparison import FEWEST_SEEDS, RESAMPLES
from formats import NOTHING
from layout import Layout
from picture import draw
from remarks import remarks
from result_files import ALL_TASKS, Result, groups, read_results, read_tuning
from sections import NOT_RUN, Section
from settings_table import settings_table, variants_table
from sweep_picture import draw_sweeps

GENERATED = "<!-- Written by examples/evidence/table.py: change the results, not this page. -->"


@dataclass(frozen=True)
class SuiteResults:
    """A suite with everything that was read about it."""

    layout: Layout
    results: list[Result]
    tuning: list[Result]

    @classmethod
    def read(cls, layout: Layout, folder: Path) -> SuiteResults:
        """Return the suite with its results from ``folder``."""
        return cls(layout, read_results(folder, layout), read_tuning(folder, layout))

    @cached_property
    def sections(self) -> list[Section]:
        """One section per task that has results, and one for the mean over tasks."""
        by_task = groups(self.results, self.layout)
        return [Section(self.layout, group, task) for task, group in by_task.items() if group.runs]

    @cached_property
    def picture(self) -> str:
        """The picture of all differences as SVG; empty if there are no intervals."""
        return draw(self.layout, self.sections)

    @cached_property
    def sweep_picture(self) -> str:
        """The picture of the sweeps as SVG; empty if there are no sweeps or no intervals."""
        return draw_sweeps(self.layout, self.sections)

    def page(self) -> str:
        """Return the page of the suite."""
        parts = [GENERATED, f"# {self.layout.title}"]
        if self.layout.text:
            parts.append(self.layout.text.strip())
        parts.append(
            f"Every figure comes from a file in `examples/evidence/results/{self.layout.name}`. "
            "[How to read the tables](README.md#how-to-read-the-tables)."
        )
        if self.picture:
            alt = f"Differences to {self.layout.methods[self.layout.baseline]} with 95 % intervals"
            parts.append(f"![{alt}; the tables below contain the same numbers]({self._svg})")
        if self.sweep_picture:
            alt = "Differences for every value of the swept flags, with 95 % intervals"
            parts.append(f"![{alt}]({self.layout.name}-sweeps.svg)")
        for section in self.sections:
            if section.task:
                parts.append(f"## {section.task[0].upper()}{section.task[1:]}")
            parts += _tables(section, "###" if section.task else "##")
        variants = variants_table(self.layout, self.tuning, self.results)
        if variants:
            parts += ["## Every variant tried", "On validation data.", variants]
        settings = settings_table(self.layout, self.results)
        if settings:
            parts += ["## Settings", "Settings that all methods share are left out.", settings]
        notes = remarks(self.layout, self.sections, self.results)
        if notes:
            parts += ["## Remarks", "\n".join(f"- {note}" for note in notes)]
        return "\n\n".join(parts) + "\n"

    @property
    def _svg(self) -> str:
        return f"{self.layout.name}.svg"


def _tables(section: Section, level: str) -> Iterator[str]:
    baseline = section.layout.methods[section.layout.baseline]
    yield from (f"{level} Mean ± standard deviation over seeds", section.means())
    titles = {
        f"Difference to {baseline}, with its 95 % interval": section.differences(),
        f"Paired bootstrap of BLEU against {baseline}, seed by seed": section.bootstrap(),
        "Costs": section.costs(),
        "Meters": section.meters(),
    }
    for title, table in titles.items():
        if table:
            yield from (f"{level} {title}", table)


def index_page(suites: Sequence[SuiteResults]) -> str:
    """Return the index of all suites, with the rule and how to read the tables."""
    rows = []
    for suite in suites:
        title = formats.escape(suite.layout.title)
        run = {result.method for result in suite.results}
        methods = f"{len(run)} of {len(suite.layout.methods)}"
        if run:
            link = f"[{title}]({suite.layout.name}.md)"
            rows.append([link, methods, "; ".join(_clear(suite)) or "none"])
        else:
            rows.append([title, NOT_RUN, NOTHING])
    header = ["suite", "methods run", "differences whose interval excludes 0"]
    listing = formats.table(header, rows) if rows else "There are no suites yet."
    return f"{GENERATED}\n\n# Evidence\n\n{RULE}\n\n## Suites\n\n{listing}\n\n{READING}\n"


def _clear(suite: SuiteResults) -> Iterator[str]:
    """Yield every clear difference; of several tasks, only those of the mean over tasks."""
    averaged = [section for section in suite.sections if section.task == ALL_TASKS]
    for section in averaged or suite.sections:
        for one in section.comparisons:
            if one.verdict:
                place = f"{section.task}, " if section.task else ""
                label = suite.layout.methods[one.method]
                yield formats.escape(f"{place}{label}: {one.measure.label} {one.verdict}")


def readme_block(suites: Sequence[SuiteResults]) -> str:
    """Return the table of the project's README: the rows that the suites name for it."""
    rows = [row for suite in suites for row in _readme_rows(suite)]
    header = ["experiment", "measure", "method", "plain", "with the method"]
    header += ["difference [95 % interval]", "seeds", "CPU time ÷ plain"]
    text = formats.table(header, rows) if rows else "No results yet."
    legend = (
        "Mean ± standard deviation over seeds on test data. **Bold**: the interval of the paired "
        "difference excludes 0. [All results and the rule](docs/evidence/README.md)."
    )
    return f"{text}\n\n{legend}" if rows else text


def _readme_rows(suite: SuiteResults) -> Iterator[list[str]]:
    layout = suite.layout
    averaged = [section for section in suite.sections if section.task == ALL_TASKS]
    for section in averaged or suite.sections:
        place = f"{layout.title}, {section.task}" if section.task else layout.title
        link = f"[{formats.escape(place)}](docs/evidence/{layout.name}.md)"
        reported = [one for one in section.measures if one.name in layout.readme_measures]
        for measure in reported:
            for method in layout.readme_methods:
                if not section.group.of(method):
                    continue
                common = section.common_seeds(method)
                yield [
                    link,
                    formats.escape(measure.heading),
                    section.label(method),
                    section.mean_cell(layout.baseline, measure),
                    section.mean_cell(method, measure),
                    section.compare(method, measure).cell(common),
                    formats.seeds(common, len(layout.seeds)),
                    section.cost_ratio(method, "cpu_seconds"),
                ]


RULE = f"""These pages compare every method with plain attention on small tasks. The rule:

- Settings are chosen on validation data with seeds 101 to 103.
- The tables show seeds 1 to 5, or at least {FEWEST_SEEDS} of them, on test data, run once with
  these settings.
- Every variant that was tried is listed on the page of its suite.

The results are files in `examples/evidence/results`, one per method and seed. The page
[examples/evidence](../../examples/evidence/README.md) says how to repeat them. A test checks that
these pages agree with the files."""

READING = f"""## How to read the tables

- **↑** and **↓** mark measures where higher and lower values are better.
- **Mean ± standard deviation** is over seeds. "3 of 5 seeds" means that two runs are missing.
- **Difference** is the mean over seeds of method − baseline, both with the same seed. The brackets
  contain its 95 % interval (paired t over seeds). It is bold only if the interval excludes 0; then
  the word *better* or *worse* follows. With fewer than {FEWEST_SEEDS} common seeds there is no
  interval (–).
- **Paired bootstrap** compares two translations of the same test set, one seed at a time:
  difference in BLEU, 95 % interval over {RESAMPLES:,} resamples of the sentences, and the p-value
  of sacrebleu's test. It accounts for the choice of test sentences, but not for the choice of seed.
  The interval over seeds accounts for the seed, but not for the sentences.
- **Costs** are ratios to the baseline with the same seed: median (minimum–maximum).
- **Meters** show whether the mechanism of a method works, independently of the result.
- In the **picture**, the line is the interval, its mark the mean, and the ticks below it are the
  differences of the single seeds."""
