"""Helpers for tests of bad input: one-line complaints, damaged files, a full disk."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_stochattn.compat import UsageError


def complaint(function, *args: object) -> str:
    """The one line a command ends with."""
    with pytest.raises(UsageError) as caught:
        function(*args)
    message = str(caught.value)
    assert message.startswith("fairseq_stochattn: ")
    assert "\n" not in message
    return message


def refusal(main, *args: object) -> str:
    """The only line on stderr of a command that refuses its input, here in this process.

    The line comes from the command (status 1) or from its parser (status 2).
    """
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(printed),
        pytest.raises(SystemExit) as caught,
    ):
        main([str(arg) for arg in args])
    # Progress bars return to the start of their line.
    lines = [line for line in printed.getvalue().splitlines() if "\r" not in line and line.strip()]
    lines = [line for line in lines if "%|" not in line]
    if isinstance(caught.value, UsageError):
        lines.append(str(caught.value))  # Python prints it when the command exits
    else:
        assert caught.value.code == 2
    assert len(lines) == 1, lines
    (line,) = lines
    assert "\n" not in line
    return line


@contextlib.contextmanager
def full_disk(size: int = 64) -> Iterator[None]:
    """Within the block, the operating system refuses to write more than ``size`` bytes to a file.

    The error is "File too large" instead of "No space left on device", and comes at the same place.
    """
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    logging.disable()  # pytest captures log messages in a file, which has the same limit
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


def truncate(path: Path) -> None:
    """Keep only the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def randomize(path: Path) -> None:
    """Replace a file by as many random bytes."""
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


class Malicious:
    """What a pickle may hold: a call of anything, made on loading."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)
