"""Ends all background threads before Python exits.

A thread that needs Python while the interpreter shuts down makes the process abort with "terminate
called without an active exception" (exit status −6), although all its work is done. Two kinds of
threads do that: the one in which fairseq loads batches, if training stops within an epoch, and
those of torch's process groups on the CPU.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from fairseq.data.iterators import BackgroundConsumer
from torch import distributed

_exiting = threading.Event()
_consumers: weakref.WeakSet[BackgroundConsumer] = weakref.WeakSet()


def stop_loading_at_exit() -> None:
    """Make every background thread stop after its current batch when Python exits."""
    plain = BackgroundConsumer.run
    if getattr(plain, "stops_at_exit", False):
        return

    def run(consumer: BackgroundConsumer) -> None:
        _consumers.add(consumer)
        consumer._source = _until_exit(consumer._source)
        plain(consumer)

    run.stops_at_exit = True
    BackgroundConsumer.run = run
    atexit.register(_stop_consumers)


def leave_process_groups_at_exit() -> None:
    """Make Python end the threads of gloo's process groups when it exits.

    NCCL's groups are left alone: ending them waits for the other ranks, which may have failed.
    """
    atexit.unregister(_leave_process_groups)  # registered once, however often this is called
    atexit.register(_leave_process_groups)


def _leave_process_groups() -> None:
    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def _until_exit(source: Iterable[Any]) -> Iterator[Any]:
    for item in source:
        if _exiting.is_set():
            return
        yield item


def _stop_consumers(seconds: float = 10.0) -> None:
    """Stop the threads that load batches, and wait for them for at most ``seconds``."""
    _exiting.set()
    deadline = time.monotonic() + seconds
    for consumer in list(_consumers):
        while consumer.is_alive() and time.monotonic() < deadline:
            try:  # make room for a thread that waits to put its batch into a full queue
                consumer._queue.get_nowait()
            except queue.Empty:
                consumer.join(timeout=0.01)
