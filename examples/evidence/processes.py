"""Runs commands with a log, within a time limit, and locks that end with their process."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class OutOfTimeError(Exception):
    """The time budget is used up; what was begun goes on in the next call."""


class CommandError(Exception):
    """A command ended with an error; the message names its log and quotes its last line."""


@dataclass
class Clock:
    """The time budget of the runner. ``stop`` ends all running commands."""

    minutes: float | None = None
    started: float = field(default_factory=time.monotonic)
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.stopped.set()

    def check(self) -> None:
        """Raise ``OutOfTimeError`` if no time is left."""
        used = (time.monotonic() - self.started) / 60
        if self.stopped.is_set() or (self.minutes is not None and used >= self.minutes):
            raise OutOfTimeError


def run_logged(
    command: Sequence[str], log: Path, clock: Clock, environment: dict[str, str]
) -> float:
    """Run a command, append its output to ``log``, and return its CPU seconds.

    Linux kills the command if this process is killed, so that no training goes on unnoticed.
    """
    clock.check()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **environment}, start_new_session=True,
            preexec_fn=partial(_die_with_parent, os.getpid()),
        )  # fmt: skip
        try:
            status, usage = _wait(process, clock)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if status:
        raise CommandError(f"{Path(command[0]).name} failed: {last_line(log)} (log: {log})")
    return usage.ru_utime + usage.ru_stime


def _wait(process: subprocess.Popen, clock: Clock) -> tuple[int, resource.struct_rusage]:
    """Wait for the end of a process; return its exit status and what it used."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        clock.check()
        time.sleep(0.2)


def _die_with_parent(parent: int) -> None:
    """In a new process: have Linux kill it when process number ``parent`` ends."""
    if _libc is not None:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call, so no signal will come
            os._exit(1)


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


@contextmanager
def lock(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock file ``path``; yields False at once if it is taken and ``wait`` is False.

    The operating system frees the lock of a killed process. The file itself stays, because
    removing a lock file that others may be opening is not safe.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
