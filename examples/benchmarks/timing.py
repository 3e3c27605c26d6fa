"""Paired, interleaved times: on a shared machine only ratios of neighbours mean anything."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True)
class Ratio:
    """Median of the paired ratios, their quartiles, and the plain time in seconds."""

    median: float
    low: float
    high: float
    pairs: int
    plain_seconds: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}–{self.high:.3f})"

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def keep_memory() -> None:
    """Let the allocator keep what it has.

    glibc gives memory back between two models of unlike size and takes it again page by page,
    which only the larger pays for. In training one model keeps what it has; so do both here.
    """
    trim_threshold, mmap_max = -1, -4  # of malloc.h
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)


def seconds(call: Callable[[], None]) -> float:
    """CPU time of this process where one thread works, which others on the machine disturb less."""
    on_gpu = torch.cuda.is_available()
    alone = torch.get_num_threads() == 1 and not on_gpu
    clock = time.process_time if alone else time.perf_counter
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
    """method over plain; who goes first changes with every pair, so that drift cancels."""
    return paired_ratios(plain, {"method": method}, pairs, warm_up)["method"]


def paired_ratios(
    plain: Callable[[], None], methods: dict[str, Callable[[], None]], pairs: int, warm_up: int = 2
) -> dict[str, Ratio]:
    """The same for several that take turns with one plain."""
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
    ratios = [one / other for one, other in zip(method, plain, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Ratio(statistics.median(ratios), low, high, len(ratios), statistics.median(plain))
