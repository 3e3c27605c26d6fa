"""The tables of one task: means, differences to the baseline, bootstraps, costs and meters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import formats
from comparison import (
    Bootstrap,
    Difference,
    bootstrap_bleu,
    paired,
    paired_difference,
    paired_ratio,
    summarise,
)
from formats import NOTHING
from layout import Layout, Measure
from result_files import Group, Result

NOT_RUN = "not run yet"
# Field of a result → heading of its column.
COSTS = {
    "cpu_seconds": "training, CPU s",
    "step_seconds": "step, s",
    "evaluation_cpu_seconds": "evaluation, CPU s",
}


@dataclass(frozen=True)
class Comparison:
    """A method against the baseline in one measure."""

    method: str
    measure: Measure
    by_seed: dict[int, float]
    difference: Difference | None

    @property
    def verdict(self) -> str:
        """Return "better", "worse", "higher" or "lower" if the interval excludes 0, else ""."""
        if self.difference is None or not self.difference.excludes_zero:
            return ""
        return self.measure.verdict(self.difference.mean)

    def cell(self, common_seeds: int) -> str:
        """Return the difference with its interval and verdict, and how many seeds have values."""
        text = formats.difference(self.difference, self.measure.digits)
        text = f"{text} {self.verdict}".rstrip()
        if self.difference is None or self.difference.count == common_seeds:
            return text
        return f"{text} ({self.difference.count} of {common_seeds})"


@dataclass(frozen=True)
class Section:
    """One task of a suite (or the mean over its tasks) and all its tables."""

    layout: Layout
    group: Group
    task: str = ""

    @cached_property
    def measures(self) -> list[Measure]:
        """The reported measures that the results of this task have."""
        return [measure for measure in self.layout.measures if self.group.has(measure.name)]

    def label(self, method: str) -> str:
        """Return the method's label for a table."""
        return formats.escape(self.layout.methods[method])

    def compare(self, method: str, measure: Measure) -> Comparison:
        """Return the comparison of a method with the baseline."""
        own, base = (
            self.group.values(name, measure.name, measure.scale)
            for name in (method, self.layout.baseline)
        )
        return Comparison(method, measure, paired(own, base), paired_difference(own, base))

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """All comparisons of methods that have results, method by method."""
        methods = [method for method in self.layout.others if self.group.of(method)]
        return [self.compare(method, measure) for method in methods for measure in self.measures]

    def mean_cell(self, method: str, measure: Measure) -> str:
        """Return mean ± sd of one method in one measure."""
        values = self.group.values(method, measure.name, measure.scale)
        return formats.mean_sd(summarise(values), measure.digits, len(self.group.of(method)))

    def means(self) -> str:
        """Return the table of all methods: number of seeds, and mean ± sd of every measure."""
        rows = []
        for method in self.layout.methods:
            count = len(self.group.of(method))
            seeds = formats.seeds(count, len(self.layout.seeds)) if count else NOT_RUN
            cells = [self.mean_cell(method, measure) for measure in self.measures]
            rows.append([self.label(method), seeds, *cells])
        return formats.table(["method", "seeds", *self._headings()], rows)

    def differences(self) -> str:
        """Return the table of paired differences to the baseline; empty without comparisons."""
        rows = []
        for method in dict.fromkeys(comparison.method for comparison in self.comparisons):
            cells = [self.compare(method, measure) for measure in self.measures]
            common = self.common_seeds(method)
            seeds = formats.seeds(common, len(self.layout.seeds))
            rows.append([self.label(method), seeds, *(cell.cell(common) for cell in cells)])
        header = ["method", "common seeds", *self._headings()]
        return formats.table(header, rows) if rows and self.measures else ""

    def _headings(self) -> list[str]:
        return [formats.escape(measure.heading) for measure in self.measures]

    def common_seeds(self, method: str) -> int:
        """Return the number of seeds that both the method and the baseline have."""
        return len(self.group.of(method).keys() & self.group.of(self.layout.baseline).keys())

    @cached_property
    def bootstraps(self) -> dict[str, dict[int, Bootstrap]]:
        """The paired bootstraps of BLEU by method and seed, where both runs have statistics."""
        found: dict[str, dict[int, Bootstrap]] = {}
        baseline = self.group.of(self.layout.baseline)
        for method in self.layout.others:
            for seed, run in self.group.of(method).items():
                base = baseline.get(seed)
                if base is None or not comparable(run, base):
                    continue
                bootstrap = bootstrap_bleu(run.bleu_statistics, base.bleu_statistics)
                found.setdefault(method, {})[seed] = bootstrap
        return found

    def bootstrap(self) -> str:
        """Return the table of paired bootstraps of BLEU, one column per seed; empty without any."""
        rows = []
        for method, by_seed in self.bootstraps.items():
            cells = [self._bootstrap_cell(by_seed.get(seed)) for seed in self.layout.seeds]
            rows.append([self.label(method), *cells])
        header = ["method", *(f"seed {seed}" for seed in self.layout.seeds)]
        return formats.table(header, rows) if rows else ""

    @staticmethod
    def _bootstrap_cell(bootstrap: Bootstrap | None) -> str:
        if bootstrap is None:
            return NOTHING
        return f"{formats.difference(bootstrap.difference, 2)}, p = {bootstrap.p_value:.3f}"

    def cost_ratio(self, method: str, attribute: str) -> str:
        """Return the ratio of a cost to that of the baseline with the same seed and processor."""
        own, base = self.group.of(method), self.group.of(self.layout.baseline)
        same = [s for s in own.keys() & base.keys() if own[s].machine == base[s].machine]
        values = ({seed: getattr(runs[seed], attribute) for seed in same} for runs in (own, base))
        return formats.ratio(paired_ratio(*values))

    def costs(self) -> str:
        """Return the table of times, each with its ratio to the baseline; empty without any."""
        columns = {
            name: heading
            for name, heading in COSTS.items()
            if any(self._mean_cost(method, name) is not None for method in self.layout.methods)
        }
        rows = []
        for method in self.layout.methods:
            if self.group.of(method):
                pairs = [
                    (self._cost(method, name), self.cost_ratio(method, name)) for name in columns
                ]
                rows.append([self.label(method), *(cell for pair in pairs for cell in pair)])
        baseline = self.label(self.layout.baseline)
        headings = [cell for heading in columns.values() for cell in (heading, f"÷ {baseline}")]
        return formats.table(["method", *headings], rows) if columns else ""

    def _mean_cost(self, method: str, name: str) -> float | None:
        runs = self.group.of(method).items()
        summary = summarise({seed: getattr(run, name) for seed, run in runs})
        return summary.mean if summary else None

    def _cost(self, method: str, name: str) -> str:
        mean = self._mean_cost(method, name)
        return NOTHING if mean is None else formats.significant(mean)

    def meters(self) -> str:
        """Return the table of meters, with the baseline's value beside; empty without any."""
        rows = []
        for method in self.layout.others:
            runs = self.group.of(method).values()
            for meter in dict.fromkeys(name for run in runs for name in run.meters):
                own, base = (self._meter(name, meter) for name in (method, self.layout.baseline))
                rows.append([self.label(method), f"`{formats.escape(meter)}`", own, base])
        header = ["method", "meter", "value", self.label(self.layout.baseline)]
        return formats.table(header, rows) if rows else ""

    def _meter(self, method: str, meter: str) -> str:
        runs = self.group.of(method).items()
        values = {seed: run.meters.get(meter, math.nan) for seed, run in runs}
        summary = summarise(values)
        if summary is None:
            return NOTHING
        text = formats.significant(summary.mean)
        return text if summary.count < 2 else f"{text} ± {formats.significant(summary.sd)}"


def comparable(run: Result, base: Result) -> bool:
    """Whether both runs have BLEU statistics of the same number of sentences."""
    own, other = run.bleu_statistics, base.bleu_statistics
    return own is not None and other is not None and own.shape == other.shape
