"""Freed memory is kept, so that a second pass over large tensors causes no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from fairseq_stochattn.core.memory import keep_freed_memory

FAULTS = """
import resource, sys, torch
from fairseq_stochattn.core.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory() and keep_freed_memory()
def step():
    for size in (40, 30, 20):  # megabytes
        x = torch.ones(size * 2**18)
        del x
for _ in range(8):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or torch.cuda.is_available(), reason="needs glibc, no GPU"
)
def test_steps_reuse_the_memory_of_the_last_one() -> None:
    keep, release = (
        int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, mode],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for mode in ("keep", "release")
    )
    pages = 3 * 40 * 2**20 // 4096  # of the largest tensors alone
    assert keep < pages / 20
    assert release > pages / 2


def test_it_is_harmless_where_the_library_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory.__wrapped__() is False
