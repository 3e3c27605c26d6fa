"""Atomic output: complete or absent, and only in place of regular files."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.files import atomic_file, atomic_folder, exclusive_output


def write_and_fail(output: AbstractContextManager[Path], name: str, error: Exception) -> None:
    """Write to a temporary file or folder, then end the block with an error."""
    with output as path:
        (path / name if name else path).write_text("half")
        raise error


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    with pytest.raises(KeyError):
        write_and_fail(atomic_file(target), "", KeyError())
    assert list(tmp_path.iterdir()) == []
    with atomic_file(target) as path:
        path.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_the_former_one_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for text in ("first", "second"):
        with atomic_folder(target) as folder:
            (folder / "a.txt").write_text(text)
    with pytest.raises(KeyError):
        write_and_fail(atomic_folder(target), "a.txt", KeyError())
    assert (target / "a.txt").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_not_a_regular_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "is not a regular file"), (".", "is a directory")):
        with pytest.raises(InputError, match=message), atomic_file(tmp_path / name):
            pytest.fail("the block must not run")
    with pytest.raises(InputError, match="is not a directory"), atomic_file(tmp_path / "x" / "y"):
        pytest.fail("the block must not run")


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    with pytest.raises(InputError, match="No space left"):
        write_and_fail(atomic_folder(tmp_path / "out"), "a.txt", full)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_exclusive_and_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    out, said = tmp_path / "out", []
    (tmp_path / ".out.123.partial").mkdir()
    reader, writer = os.pipe()
    if os.fork() == 0:  # a second process that wants the same output
        os.read(reader, 1)
        with exclusive_output(out, said.append):
            os._exit(0 if said and f"process {os.getppid()}," in said[0] else 1)
    with exclusive_output(out, said.append):
        assert not (tmp_path / ".out.123.partial").exists()
        os.write(writer, b"x")
        time.sleep(0.5)
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 0
    assert not out.exists()
