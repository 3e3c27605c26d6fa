"""Outputs of data-prep under adverse conditions: two runs at once, kills, damage, bad numbers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import prepare_pairs
import runner
from steps.fetch import sha256_of
from steps.manifest import find_damage, read_manifest
from thorough import THOROUGH

KILLS = 10 if THOROUGH else 4  # ``make kills``
SCRIPT = runner.ROOT / "data-prep" / "prepare_pairs.py"
WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu") for b in ("ba", "do", "fi", "gu")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    for split, count in (("train", 4000), ("valid", 40), ("test", 40)):
        for lang in ("de", "en"):
            rows = (" ".join(rng.choices(WORDS, k=6)) for _ in range(count))
            (folder / f"{split}.{lang}").write_text("".join(f"{row}\n" for row in rows))
    return folder


def arguments(corpus: Path, out: Path, *more: object) -> list[str]:
    splits = (x for s in ("train", "valid", "test") for x in (f"--{s}", corpus / s))
    flags = ("--source-lang", "de", "--target-lang", "en", "--size", 60, "--workers", 2)
    return [*map(str, ("--out", out, *splits, *flags, *more))]


def start(corpus: Path, out: Path, *more: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments(corpus, out, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def is_true(out: Path) -> bool:
    """Whether every file of the output has the size and checksum of its manifest."""
    return find_damage(out, read_manifest(out), verify=True) is None


@pytest.mark.parametrize("later", [0, 1.5])
def test_two_runs_at_once_make_one_output(later: float, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    first = start(corpus, out)
    time.sleep(later)
    second = start(corpus, out)
    results = [process.communicate(timeout=300) for process in (first, second)]
    assert first.returncode == second.returncode == 0, results
    done = [text for text, _ in results if "already complete" in text]
    assert len(done) == 1
    assert is_true(out)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_kills_leave_no_worker_and_nothing_half_made(corpus: Path, tmp_path: Path) -> None:
    """kill -9 of the main process at random moments; then a run gives the undisturbed output."""
    (tmp_path / "killed").mkdir()
    out, undisturbed, rng = tmp_path / "killed" / "data", tmp_path / "whole", random.Random(1)
    killed_workers = killed_while_writing = 0
    for number in range(KILLS):
        process = start(corpus, out)
        if number % 2:  # half of the kills while workers run
            wait_until(lambda group=process.pid: len(members(group)) > 1, seconds=120)
            time.sleep(rng.uniform(0, 0.3))
        else:
            time.sleep(rng.uniform(0.5, 4.0))
        killed_workers += len(members(process.pid)) > 1
        killed_while_writing += any(x.is_dir() and x != out for x in out.parent.iterdir())
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert wait_until(lambda group=process.pid: not members(group), seconds=5)
        if out.exists():  # the run was faster than the kill
            assert is_true(out)
            shutil.rmtree(out)
    assert killed_workers >= KILLS // 4
    assert killed_while_writing >= KILLS // 4
    last = start(corpus, out)
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert is_true(out)
    assert [path.name for path in out.parent.iterdir()] == ["data"]
    assert prepare_pairs.main(arguments(corpus, undisturbed)) == 0
    assert read_manifest(out)["files"] == read_manifest(undisturbed)["files"]


def wait_until(happens: Callable[[], bool], seconds: float) -> bool:
    """Wait until ``happens()`` is true, for at most ``seconds``; return whether it is true."""
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.02)
    return happens()


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def test_a_damaged_output_is_named_and_made_again_only_with_force(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "data"
    assert prepare_pairs.main(arguments(corpus, out)) == 0
    target = out / "train.de-en.de.bin"
    content = target.read_bytes()
    for damage, verify, message in (
        (b"", False, "train.de-en.de.bin has 0 bytes instead of"),
        (bytes(len(content)), True, "train.de-en.de.bin has another checksum"),
        (None, False, "train.de-en.de.bin is missing"),
    ):
        target.unlink() if damage is None else target.write_bytes(damage)
        flags = ("--verify",) if verify else ()
        assert prepare_pairs.main(arguments(corpus, out, *flags)) == 1
        error = capsys.readouterr().err
        assert message in error
        assert "make it again with --force" in error
        assert error.count("\n") == 1
    assert prepare_pairs.main(arguments(corpus, out, "--force")) == 0
    assert sha256_of(target) == read_manifest(out)["files"][target.name]["sha256"]
    assert prepare_pairs.main(arguments(corpus, out, "--verify")) == 0


@pytest.mark.parametrize("content", ["[]", "3", "{", "[" * 100_000])
def test_a_manifest_of_any_shape_is_one_line(
    content: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "data"
    out.mkdir()
    (out / "manifest.json").write_text(content)
    assert prepare_pairs.main(arguments(corpus, out)) == 1
    error = capsys.readouterr().err
    assert "manifest.json is damaged" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--ratio", "nan"), "must be 0 or a number of at least 1"),
        (("--ratio", "-2"), "must be 0 or a number of at least 1"),
        (("--ratio", "0.5"), "must be 0 or a number of at least 1"),
        (("--size", "0"), "must be a whole number of at least 1"),
        (("--shards", "0"), "must be a whole number of at least 1"),
        (("--max-tokens", "-1"), "must be a whole number of at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    flags: tuple, message: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as caught:
        prepare_pairs.main(arguments(corpus, tmp_path / "data", *flags))
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_no_shard_is_empty(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "data"
    assert prepare_pairs.main(arguments(corpus, out, "--shards", 5000)) == 1
    assert "--shards 5000: there are only 4000 training pairs" in capsys.readouterr().err
    assert not out.exists()
    assert prepare_pairs.main(arguments(corpus, out, "--shards", 3)) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    sizes = [v["bytes"] for k, v in manifest["files"].items() if k.endswith("train.de-en.de.bin")]
    assert len(sizes) == 3
    assert min(sizes) > 0


def test_printed_commands_quote_their_paths(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "my data"
    assert prepare_pairs.main(arguments(corpus, out)) == 0
    assert f"fairseq-train '{out}'" in capsys.readouterr().out
