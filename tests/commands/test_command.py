"""The one boundary of all commands: errors become one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairseq_stochattn.commands.command import command
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.errors import InputError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("two\nlines"), "fairseq_stochattn: two lines"),
        (OSError(28, "No space left on device", "x.json"), "x.json: No space left on device"),
        (PermissionError(13, "Permission denied", "out"), "out: Permission denied"),
        (IsADirectoryError(21, "Is a directory", "data"), "data: Is a directory"),
    ],
)
def test_errors_of_input_and_output_are_one_line(error: Exception, message: str) -> None:
    @command
    def main(argv: Sequence[str] | None) -> int:
        raise error

    with pytest.raises(UsageError) as caught:
        main([])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_our_code_keeps_its_traceback() -> None:
    @command
    def main(argv: Sequence[str] | None) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main([])


def test_a_closed_pipe_is_no_traceback() -> None:
    methods = Path(sys.executable).parent / "stochattn-methods"
    done = subprocess.run(
        f"{methods} --archs | head -n 1", shell=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("--user-dir")
    assert "Traceback" not in done.stderr
