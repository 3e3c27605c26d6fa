"""Fixtures of the fuzz tests: a folder to write to, and no folder of hypothesis in the project."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from mutations import OUTCOMES


@pytest.fixture(scope="session", autouse=True)
def _hypothesis_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Switch off logging, which would take longer than the readers."""
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(previous)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases of every test were accepted and refused."""
    for test in dict.fromkeys(test for test, _ in OUTCOMES):
        accepted, refused = OUTCOMES[test, "accepted"], OUTCOMES[test, "refused"]
        name = test.rpartition("::")[2]
        terminalreporter.write_line(f"{name}: {accepted:,} accepted, {refused:,} refused")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that all cases of a file write to, in memory if the system has such a folder."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)
