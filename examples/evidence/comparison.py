"""Statistics of repeated runs: means, paired differences with intervals, and BLEU bootstraps.

All functions are pure. A run is identified by its seed; two methods are compared on the seeds
that both have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import BLEU

from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.optional import optional_import

LEVEL = 0.95
FEWEST_SEEDS = 3  # for an interval
RESAMPLES = 1000
BOOTSTRAP_SEED = 12345  # sacrebleu's default, so that its command prints the same p-value
ORDERS = 4  # n-grams of BLEU
STATISTICS = 2 * ORDERS + 2  # matching n-grams, n-grams, length, reference length


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of ``count`` finite values."""

    mean: float
    sd: float  # NaN for fewer than two values
    count: int


@dataclass(frozen=True)
class Difference:
    """A mean difference to the baseline with its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Bootstrap:
    """Difference in BLEU of two systems on one test set, with its interval and p-value."""

    difference: Difference  # ``count`` is the number of sentences
    p_value: float


@dataclass(frozen=True)
class Ratio:
    """Median, minimum and maximum of the ratios of paired runs."""

    median: float
    low: float
    high: float


def finite(values: Mapping[int, float]) -> dict[int, float]:
    """Return the finite values, by seed."""
    return {seed: value for seed, value in sorted(values.items()) if math.isfinite(value)}


def paired(method: Mapping[int, float], baseline: Mapping[int, float]) -> dict[int, float]:
    """Return method − baseline for every seed where both values are finite."""
    method, baseline = finite(method), finite(baseline)
    return {seed: value - baseline[seed] for seed, value in method.items() if seed in baseline}


def summarise(values: Mapping[int, float]) -> Summary | None:
    """Return mean and standard deviation of the finite values; None if there are none."""
    numbers = list(finite(values).values())
    if not numbers:
        return None
    sd = statistics.stdev(numbers) if len(numbers) > 1 else math.nan
    return Summary(statistics.fmean(numbers), sd, len(numbers))


def paired_difference(
    method: Mapping[int, float], baseline: Mapping[int, float], level: float = LEVEL
) -> Difference | None:
    """Return the mean paired difference with its t interval; None for fewer than three seeds.

    The interval is d ± t · s/√n, where s is the standard deviation of the n differences and t the
    quantile of Student's distribution with n − 1 degrees of freedom.
    """
    summary = summarise(paired(method, baseline))
    if summary is None or summary.count < FEWEST_SEEDS:
        return None
    student = optional_import("scipy.stats", "the interval of a difference").t
    quantile = float(student.ppf((1 + level) / 2, summary.count - 1))
    margin = quantile * summary.sd / math.sqrt(summary.count)
    return Difference(summary.mean, summary.mean - margin, summary.mean + margin, summary.count)


def paired_ratio(method: Mapping[int, float], baseline: Mapping[int, float]) -> Ratio | None:
    """Return the ratios method ÷ baseline over the common seeds; None without such seeds."""
    method, baseline = finite(method), finite(baseline)
    common = [seed for seed in method if baseline.get(seed, 0) > 0]
    ratios = [method[seed] / baseline[seed] for seed in common]
    if not ratios:
        return None
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def check_bleu_statistics(rows: object) -> np.ndarray:
    """Return BLEU statistics as an array (sentences, 10); raise ``InputError`` if impossible.

    A row holds the matching n-grams for n = 1 to 4, all n-grams for n = 1 to 4, the length of the
    translation and that of the reference. A permuted row breaks one of the inequalities below.
    """
    try:
        array = np.array(rows)
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    if array.ndim != 2 or array.shape[1] != STATISTICS or array.dtype.kind != "i":
        raise InputError(f"must be a list of rows of {STATISTICS} integers")
    correct, total = array[:, :ORDERS], array[:, ORDERS : 2 * ORDERS]
    length = array[:, 2 * ORDERS]
    possible = (array >= 0).all() and (correct <= total).all() and (total[:, 0] == length).all()
    if not possible:
        raise InputError(
            "must have rows of matching 1- to 4-grams, all 1- to 4-grams, length, reference length"
        )
    return array


def bleu(sums: Sequence[int] | np.ndarray) -> float:
    """Return corpus BLEU from the summed statistics of its sentences, with sacrebleu's defaults."""
    numbers = [int(number) for number in sums]
    correct, total = numbers[:ORDERS], numbers[ORDERS : 2 * ORDERS]
    return BLEU.compute_bleu(correct, total, *numbers[2 * ORDERS :], smooth_method="exp").score


def bootstrap_bleu(
    method: np.ndarray,
    baseline: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = BOOTSTRAP_SEED,
    level: float = LEVEL,
) -> Bootstrap:
    """Return the paired bootstrap of two arrays of BLEU statistics (sentences, 10).

    Each resample draws sentences with replacement, the same for both systems (Koehn, 2004). The
    interval has the percentiles of the resampled differences; the p-value is sacrebleu's.
    """
    if method.shape != baseline.shape:
        raise InputError(
            f"BLEU statistics of {len(method)} and {len(baseline)} sentences: a paired bootstrap "
            "needs the same test set"
        )
    sentences = len(method)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(sentences, size=(resamples, sentences), replace=True)
    # counts[r, i]: how often resample r contains sentence i
    counts = np.stack([np.bincount(row, minlength=sentences) for row in drawn])
    scores = [np.array([bleu(row) for row in counts @ array]) for array in (method, baseline)]
    differences = scores[0] - scores[1]
    observed = bleu(method.sum(axis=0)) - bleu(baseline.sum(axis=0))
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    sizes = np.abs(differences)
    extreme = int(np.sum(sizes - sizes.mean() > abs(observed)))
    # For equal scores the formula gives the smallest p-value instead of the largest.
    p_value = (extreme + 1) / (resamples + 1) if observed else 1.0
    return Bootstrap(Difference(observed, float(low), float(high), sentences), p_value)
