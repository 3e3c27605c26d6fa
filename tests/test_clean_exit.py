"""Background threads end before Python exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import time, torch
import fairseq_stochattn.models
from fairseq.data.iterators import BufferedIterator

class Endless:
    def __len__(self):
        return 10**9
    def __iter__(self):
        while True:
            yield torch.randn(300, 300) @ torch.randn(300, 300)

loader = BufferedIterator(4, Endless())
for _ in range(3):
    next(loader)
started = time.monotonic()
"""


def test_a_process_that_stops_within_an_epoch_ends_cleanly_and_soon() -> None:
    for wait in (0.0, 0.05, 0.2):  # with a queue that is empty, filling, full
        done = subprocess.run(
            [sys.executable, "-c", f"{CODE}\ntime.sleep({wait})"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr[-500:]


RANK = """
import sys, torch
import fairseq_stochattn.models
from torch import distributed

distributed.init_process_group(
    "gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2
)
for _ in range(200):
    distributed.all_reduce(torch.ones(10))
"""


def test_ranks_that_share_a_process_group_end_cleanly(tmp_path: Path) -> None:
    """Without ``clean_exit.py``, about three of ten such processes abort."""
    for attempt in range(4):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(tmp_path / f"meet{attempt}")],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], errors
