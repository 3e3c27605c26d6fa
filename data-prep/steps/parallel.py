"""Apply a function to a stream in several processes, in order, with few chunks in memory."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from steps.errors import PrepError

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 2_000  # items that a worker receives at once

_process_chunk: Callable[[list], list] | None = None  # set once in every worker process


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chunks(items: Iterable[Item], size: int = CHUNK) -> Iterator[list[Item]]:
    """Yield consecutive lists of at most ``size`` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _start_worker(make_function: Callable[..., Callable[[list], list]], arguments: tuple) -> None:
    global _process_chunk
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    _process_chunk = make_function(*arguments)


def _exit_with_parent(parent: int) -> None:
    """End this worker soon after its parent was killed; runs in a thread."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run_in_worker(chunk: list) -> list:
    return _process_chunk(chunk)


def map_chunks(
    make_function: Callable[..., Callable[[list[Item]], list[Result]]],
    arguments: tuple[Any, ...],
    items: Iterable[Item],
    workers: int,
) -> Iterator[Result]:
    """Yield the results of ``make_function(*arguments)`` on all chunks, flattened and in order.

    ``make_function`` is called once per worker process, so the models that it loads are loaded only
    once. The stream is read only as fast as the results are consumed, so memory does not grow with
    the corpus.
    """
    if workers <= 1:
        function = make_function(*arguments)
        for chunk in chunks(items):
            yield from function(chunk)
        return
    context = multiprocessing.get_context("fork" if os.name == "posix" else None)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (make_function, arguments))
    pending: deque = deque()
    try:
        for chunk in chunks(items):
            pending.append(pool.submit(_run_in_worker, chunk))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool:
        raise PrepError(
            "a worker process died, perhaps because memory ran out: try fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
