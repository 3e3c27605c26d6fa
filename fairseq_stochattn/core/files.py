"""Atomic output: a file or folder appears under its name complete, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: no lock there
    fcntl = None

from .errors import InputError


def partial_path(destination: Path) -> Path:
    """The hidden path next to ``destination`` that is written first, then renamed to it."""
    return destination.with_name(f".{destination.name}.{os.getpid()}.partial")


@contextmanager
def atomic_file(destination: Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes ``destination`` if the block succeeds."""
    if not destination.parent.is_dir():
        raise InputError(f"{destination.parent} is not a directory")
    if destination.is_dir():
        raise InputError(f"{destination} is a directory")
    if destination.exists() and not destination.is_file():
        raise InputError(f"{destination} is not a regular file")
    partial = partial_path(destination)
    try:
        yield partial
        partial.replace(destination)
    except OSError as error:
        # The error of a failed write, as on a full disk, does not name the file.
        error.filename = error.filename or str(destination)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; if the block succeeds, it replaces ``destination``."""
    partial = partial_path(destination)
    try:
        partial.mkdir(parents=True)
        yield partial
        if destination.exists():
            shutil.rmtree(destination)
        partial.replace(destination)
    except OSError as error:
        raise InputError(f"{destination}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def exclusive_output(destination: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an output, so that two processes cannot make it at the same time.

    If another process holds it, ``say`` gets one line and this process waits. The operating
    system releases the lock of a process that is killed. The process with the lock also removes
    what killed processes have left of the same output.
    """
    path = destination.with_name(f".{destination.name}.lock")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path, say)
    except OSError as error:
        raise InputError(f"{destination}: {error.strerror or error}") from None
    try:
        for stale in destination.parent.glob(f".{destination.name}.*.partial"):
            shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _locked(path: Path, say: Callable[[str], None]) -> int:
    """The descriptor of the lock file, locked, with the number of this process in it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if fcntl is None:
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "another process"
            say(f"waiting for process {holder}, which makes the same output ({path})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # The former holder may have removed the file that was locked just now: try the new one.
        if path.exists() and os.fstat(lock).st_ino == path.stat().st_ino:
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            return lock
        os.close(lock)
