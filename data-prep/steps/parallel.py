"""Apply a function to a stream on all cores, in order, holding only a few chunks in memory."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from steps.errors import PrepError

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 2_000

_work: Callable[[list], list] | None = None


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chunks(items: Iterable[Item], size: int = CHUNK) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _start(make_work: Callable[..., Callable[[list], list]], arguments: tuple) -> None:
    global _work
    _work = make_work(*arguments)


def _run(chunk: list) -> list:
    return _work(chunk)


def map_chunks(
    make_work: Callable[..., Callable[[list[Item]], list[Result]]],
    arguments: tuple[Any, ...],
    items: Iterable[Item],
    workers: int,
) -> Iterator[Result]:
    """Yield ``make_work(*arguments)(chunk)`` for chunk after chunk, flattened and in order.

    ``make_work`` is called once in every process, so what it loads is loaded once. The stream is
    read only as fast as results are taken: memory does not grow with the corpus.
    """
    if workers <= 1:
        work = make_work(*arguments)
        for chunk in chunks(items):
            yield from work(chunk)
        return
    context = multiprocessing.get_context("fork" if os.name == "posix" else None)
    pool = ProcessPoolExecutor(workers, context, _start, (make_work, arguments))
    waiting: deque = deque()
    try:
        for chunk in chunks(items):
            waiting.append(pool.submit(_run, chunk))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise PrepError("a worker process died, perhaps for want of memory") from None
    finally:
        pool.shutdown(cancel_futures=True)
