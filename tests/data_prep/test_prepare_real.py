"""The real files of Multi30k and Tatoeba, and the peak memory on corpora of two sizes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import prepare_multi30k
import prepare_tatoeba
import runner

SHARED = runner.ROOT.parent / "shared" / "data"
PEAK = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def real(corpus: str) -> Path:
    """Return the folder of a real corpus; skip the test if it does not exist."""
    folder = SHARED / corpus
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist")
    return folder


def test_the_whole_of_multi30k(tmp_path: Path) -> None:
    origin, out = real("multi30k"), tmp_path / "out"
    arguments = ["--from", str(origin), "--out", str(out), "--size", "300"]
    assert prepare_multi30k.main(arguments) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    kept = {split: stats["kept"] for split, stats in manifest["splits"].items()}
    assert kept == {"train": 29_000, "valid": 1_014, "test": 1_000}
    assert manifest["splits"]["train"]["duplicates"] == 3
    assert manifest["splits"]["test"]["unknown_rate"] < 0.001
    # The local files equal those at the official address.
    wanted = {remote.name: remote.checksum for remote in prepare_multi30k.REMOTES}
    assert manifest["sources"] == wanted


def test_the_whole_of_tatoeba(tmp_path: Path) -> None:
    origin, out = real("tatoeba"), tmp_path / "out"
    arguments = ["--from", str(origin), "--out", str(out), "--subwords", "none"]
    assert prepare_tatoeba.main(arguments) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    kept = {split: stats["kept"] for split, stats in manifest["splits"].items()}
    assert kept == {"train": 166_408, "valid": 1_734, "test": 1_671}
    assert manifest["sources"] == {"deu-eng.zip": prepare_tatoeba.REMOTE.checksum}


def peak_memory(folder: Path, lines: int) -> int:
    """Return the peak memory of prepare_pairs.py in KiB on lines of 500 distinct words."""
    folder.mkdir()
    rng = random.Random(lines)
    words = [f"w{n}" for n in range(500)]
    for split, count in (("train", lines), ("valid", 10)):
        for lang in ("de", "en"):
            rows = (" ".join(rng.choices(words, k=20)) for _ in range(count))
            (folder / f"{split}.{lang}").write_text("".join(f"{row}\n" for row in rows))
    script = runner.ROOT / "data-prep" / "prepare_pairs.py"
    given = ("--source-lang", "de", "--target-lang", "en", "--raw", "--size", 50, "--workers", 2)
    text = [x for split in ("train", "valid") for x in (f"--{split}", folder / split)]
    command = [sys.executable, script, "--out", folder / "out", *given, *text]
    found = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    code, peak = found.stdout.splitlines()[-1].split()
    assert code == "0", found.stderr
    return int(peak)


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Both corpora are large enough for all workers; one is three times as long."""
    sizes = (50_000, 150_000)
    small, large = (peak_memory(tmp_path / str(n), n) for n in sizes)
    texts = [
        sum(path.stat().st_size for path in (tmp_path / str(n)).glob("train.*")) // 1024
        for n in sizes
    ]
    assert texts[1] - texts[0] > 10_000
    # Per line, at most four bytes (its length) and eight bytes (a buffered hash) stay in memory.
    assert large - small < 0.3 * (texts[1] - texts[0])
