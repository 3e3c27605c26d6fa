"""Ranks that lose each other end soon and with one line; a normal end waits for no timeout."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from fairseq.distributed import utils as distributed_utils
from torch import distributed

import runner
import sizes
from fairseq_stochattn import ddp
from fairseq_stochattn.compat import UsageError

LOST = "fairseq_stochattn: the connection to the other ranks was lost ("
ENDLESS = (
    *("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo"),
    *("--max-update", 100000, "--no-save", "--disable-validation"),
)
TIMEOUT = ("--heartbeat-timeout", 15)  # longer than one rank starts after the other


@pytest.mark.parametrize(
    ("stop", "backend", "flags", "cause"),
    [
        (signal.SIGKILL, "pytorch_ddp", (), "Connection "),
        (signal.SIGSTOP, "legacy_ddp", TIMEOUT, "Timed out waiting 15000ms"),
    ],
    ids=["killed", "hanging"],
)
def test_the_other_rank_ends_with_one_line(
    stop: signal.Signals, backend: str, flags: tuple, cause: str, translation_data: Path
) -> None:
    flags = (*ENDLESS, "--ddp-backend", backend, *flags)
    first, second = runner.start_two_ranks(translation_data, *flags)
    guard = threading.Timer(200, first.kill)  # if training never starts, the log ends
    guard.start()
    try:
        assert any('"num_updates": "5"' in line for line in first.stdout)
        second.send_signal(stop)
        stopped = time.monotonic()
        errors = first.communicate(timeout=120)[1]
        seconds = time.monotonic() - stopped
    finally:
        guard.cancel()
        for rank in (first, second):
            rank.kill()
            rank.communicate()
    assert first.returncode == 1
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith(LOST)
    assert errors.count(LOST) == 1
    assert cause in errors
    assert seconds < 60


def test_ranks_without_a_shared_folder_are_refused(translation_data: Path, tmp_path: Path) -> None:
    """The first run also shows that a normal end does not wait for the timeout."""
    shared, own = (("--save-dir", tmp_path / name) for name in ("shared", "own"))
    flags = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--disable-validation")
    first = (*flags, *shared, "--heartbeat-timeout", 250, "--max-update", 2)
    started = time.monotonic()
    for rank in runner.start_two_ranks(translation_data, *first):
        assert runner.finish(rank).returncode == 0
    assert time.monotonic() - started < 200
    again = (*flags, *shared, "--max-update", 4)
    for number, rank in enumerate(runner.start_two_ranks(translation_data, *again, of_second=own)):
        result = runner.finish(rank)
        assert result.returncode == 1
        error = result.stderr.strip().splitlines()[-1]
        assert error.startswith("fairseq_stochattn: the ranks find different checkpoints: ")
        assert ("does not exist" if number else "exists") in error
        assert "Traceback" not in result.stderr


def test_other_errors_keep_their_traceback() -> None:
    for error in (
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        RuntimeError("[gloo/transport/tcp/pair.cc:1] op.preamble.length <= op.nbytes. 40 vs 4"),
        RuntimeError("DataLoader timed out after 5 seconds"),
    ):
        with pytest.raises(RuntimeError) as caught, ddp.one_line_if_lost():
            raise error
        assert caught.value is error


def test_ranks_that_do_not_meet_end_with_one_line() -> None:
    """torch reports this by another class of errors."""
    nobody = "tcp://127.0.0.1:1"
    with pytest.raises(UsageError) as caught, ddp.one_line_if_lost():
        distributed.init_process_group(
            "gloo", init_method=nobody, rank=1, world_size=2, timeout=timedelta(seconds=1)
        )
    assert str(caught.value).startswith(LOST)
    assert "\n" not in str(caught.value)


def test_fairseq_can_send_its_main_function_to_other_processes() -> None:
    """On GPUs fairseq starts one process per GPU and pickles this function."""
    main = distributed_utils.distributed_main
    assert main.explains_lost_connections
    assert pickle.loads(pickle.dumps(main)) is main


def test_patches_are_applied_once() -> None:
    before = {name: getattr(ddp.Trainer, name) for name in ("__init__", "train_step")}
    ddp.apply()
    assert before == {name: getattr(ddp.Trainer, name) for name in before}
