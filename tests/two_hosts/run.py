"""Trains on two hosts as docs/multi-node.md says, cuts the network, and resumes: ``make hosts``.

The hosts are network namespaces, so this needs Linux, root and iproute2. It takes about four
minutes. Every line of the output is one thing that was checked.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from network import ADDRESSES, INTERFACE, NotPossibleError, TwoHosts, two_hosts

import corpora
import runner
import sizes
from precision import SGD, distance, weights

PAGE = runner.ROOT / "docs" / "multi-node.md"
LOST = "fairseq_stochattn: the connection to the other ranks was lost"
UPDATES, SAVED_EVERY, CUT_AT = 300, 40, 130
LONG = (
    *("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo", "--batch-size", 16),
    *("--optimizer", "adam", "--lr", 0.002, "--max-update", UPDATES, "--disable-validation"),
    *("--save-interval-updates", SAVED_EVERY, "--keep-interval-updates", 1),
)
LOG = ("--num-workers", 0, "--log-format", "json", "--log-interval", 1, "--seed", 3)


def documented_command() -> str:
    """Return the command for CPU hosts of the page."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.S)
    return next(block for block in blocks if "--distributed-backend gloo" in block).strip()


def start(hosts: TwoHosts, rank: int, data: Path, save: Path, *flags: object) -> subprocess.Popen:
    """Start the documented command on one host, with more flags in place of the dots."""
    more = shlex.join(map(str, (*LOG, "--no-epoch-checkpoints", *flags)))
    command = documented_command()
    for name, value in {
        **{"DATA": str(data), "SAVE_DIR": str(save), "RANK": str(rank), "…": more},
        **{"10.0.0.1": ADDRESSES[0], "eth0": INTERFACE},
    }.items():
        assert name in command, f"{PAGE} has no {name}"
        command = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", lambda _, to=value: to, command)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (save.parent / f"{save.name}.rank{rank}.log").open("w") as log:
        return subprocess.Popen(
            hosts.inside(rank, ["bash", "-c", command]),
            cwd=runner.ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        )


@contextmanager
def running(hosts: TwoHosts, *args: object) -> Iterator[list[subprocess.Popen]]:
    """Start one rank on each host; at the end of the block, kill what still runs."""
    ranks = [start(hosts, rank, *args) for rank in (0, 1)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()


def log_of(save: Path, rank: int) -> str:
    """Return what a rank of the latest run with this save folder has printed."""
    return (save.parent / f"{save.name}.rank{rank}.log").read_text()


def train(hosts: TwoHosts, data: Path, save: Path, *flags: object) -> None:
    """Train on both hosts; both must succeed."""
    with running(hosts, data, save, *flags) as ranks:
        for number, rank in enumerate(ranks):
            assert rank.wait(timeout=300) == 0, log_of(save, number)[-3000:]


def check_joined_batch(hosts: TwoHosts, folder: Path) -> None:
    """An epoch of 64 pairs is one batch of one process, or one batch of 32 on each host."""
    data = corpora.translation(folder / "short", 64, 6, 6)
    runner.train(data, folder / "one", *SGD)
    runner.train(data, folder / "untrained", *SGD, "--lr", 0, "--max-update", 1)
    train(hosts, data, folder / "two", *SGD, "--batch-size", 32)
    moved = distance(folder / "one", folder / "untrained")
    difference = distance(folder / "one", folder / "two")
    assert moved > 0.01, moved
    assert difference < 1e-5, difference
    print(f"two hosts equal one process on the joined batch: {difference:.1e} of {moved:.2f}")


def check_cut(hosts: TwoHosts, data: Path, save: Path) -> None:
    """Cut the cable in the middle of training: both ranks end soon, with one line."""
    with running(hosts, data, save, *LONG) as ranks:
        deadline = time.monotonic() + 120
        while f'"num_updates": "{CUT_AT}"' not in log_of(save, 0):
            assert time.monotonic() < deadline, log_of(save, 0)[-3000:]
            assert all(rank.poll() is None for rank in ranks), log_of(save, 0)[-3000:]
            time.sleep(0.02)
        hosts.cut()
        cut = time.monotonic()
        for rank in ranks:
            rank.wait(timeout=cut + 120 - time.monotonic())
        seconds = time.monotonic() - cut
    hosts.join()
    for number, rank in enumerate(ranks):
        log = log_of(save, number)
        assert rank.returncode == 1, rank.returncode
        assert "Traceback" not in log, log[-3000:]
        assert log.count(LOST) == 1, log[-3000:]
        assert log.strip().splitlines()[-1].startswith(LOST), log[-3000:]
    print(f"the cut ends both ranks with one line, after {seconds:.0f} s")


def updates_of(save: Path) -> int:
    state = torch.load(save / "checkpoint_last.pt", weights_only=True)
    return state["optimizer_history"][-1]["num_updates"]


def check_resumed(hosts: TwoHosts, data: Path, save: Path, whole: Path) -> None:
    """Start both again: the result equals that of an uninterrupted run, bit for bit."""
    saved = updates_of(save)
    assert 0 < saved < UPDATES, saved
    assert saved % SAVED_EVERY == 0, saved
    train(hosts, data, save, *LONG)
    assert f"@ {saved} updates" in log_of(save, 0), log_of(save, 0)[-3000:]
    assert updates_of(save) == updates_of(whole) == UPDATES
    one, other = weights(whole), weights(save)
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    print(f"resumed at update {saved}; after {UPDATES} bit-equal to an uninterrupted run")


def main() -> int:
    """Run all checks; the namespaces are removed in any case."""
    import fairseq_stochattn.models  # noqa: F401  (for training in this process)

    logging.disable(logging.CRITICAL)  # of the reference runs in this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with two_hosts() as hosts, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            check_joined_batch(hosts, folder)
            data = corpora.translation(folder / "long", 6400)
            train(hosts, data, folder / "whole", *LONG)
            check_cut(hosts, data, folder / "parts")
            check_resumed(hosts, data, folder / "parts", folder / "whole")
    except NotPossibleError as error:
        print(f"two_hosts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
