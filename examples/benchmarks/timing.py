"""Measure the running time of a method relative to plain fairseq; the two run alternately.

On a shared machine, two times are comparable only if one is measured right after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True)
class Ratio:
    """The median and the quartiles of paired ratios, and the median plain time in seconds."""

    median: float
    low: float
    high: float
    pairs: int
    plain_seconds: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}–{self.high:.3f})"

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def seconds(call: Callable[[], None]) -> float:
    """Return the time of a call: CPU time if torch uses one CPU thread, otherwise elapsed time.

    Other processes disturb CPU time less than elapsed time.
    """
    on_gpu = torch.cuda.is_available()
    one_thread = torch.get_num_threads() == 1 and not on_gpu
    clock = time.process_time if one_thread else time.perf_counter
    if on_gpu:
        torch.cuda.synchronize()
    start = clock()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def paired_ratio(
    plain: Callable[[], None], method: Callable[[], None], pairs: int, warm_up: int = 2
) -> Ratio:
    """Return the time of method over that of plain; the order alternates, so that drift cancels."""
    return paired_ratios(plain, {"method": method}, pairs, warm_up)["method"]


def paired_ratios(
    plain: Callable[[], None], methods: dict[str, Callable[[], None]], pairs: int, warm_up: int = 2
) -> dict[str, Ratio]:
    """Return the ratios of several methods that take turns with one plain call."""
    order = {"plain": plain, **methods}
    for _ in range(warm_up):
        for step in order.values():
            step()
    times: dict[str, list[float]] = {name: [] for name in order}
    for pair in range(pairs):
        for name in reversed(order) if pair % 2 else order:
            times[name].append(seconds(order[name]))
    return {name: _ratio(times["plain"], times[name]) for name in methods}


def _ratio(plain: list[float], method: list[float]) -> Ratio:
    ratios = [numerator / denominator for numerator, denominator in zip(method, plain, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Ratio(statistics.median(ratios), low, high, len(ratios), statistics.median(plain))
