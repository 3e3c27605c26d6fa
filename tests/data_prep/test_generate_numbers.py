"""The number generator as a command: deterministic, one-line errors, atomic output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import generate_numbers
from numbers_corpus import carriers

DATA_PREP = Path(__file__).resolve().parents[2] / "data-prep"


def run_generator(out: Path, *options: str, hash_seed: str = "0") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, DATA_PREP / "generate_numbers.py", "--out", out, *options],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_same_seed_gives_the_same_files(tmp_path):
    sizes = ("--train", "300", "--valid", "40", "--test", "40")
    first = run_generator(tmp_path / "a", *sizes, hash_seed="1")
    run_generator(tmp_path / "b", *sizes, hash_seed="2")
    run_generator(tmp_path / "c", *sizes, "--seed", "2")
    assert first.returncode == 0, first.stderr
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"
    ]
    assert set(contents[0]) == {
        *("train.de", "train.en", "valid.de", "valid.en", "valid.jsonl"),
        *("test.de", "test.en", "test.jsonl"),
    }
    assert contents[0] == contents[1]
    assert contents[0]["test.de"] != contents[2]["test.de"]
    records = [json.loads(line) for line in contents[0]["test.jsonl"].decode().splitlines()]
    assert [record["de"] for record in records] == contents[0]["test.de"].decode().splitlines()
    assert [record["en"] for record in records] == contents[0]["test.en"].decode().splitlines()


def test_held_out_splits_do_not_depend_on_the_training_size():
    small = generate_numbers.build_corpus({"train": 10, "valid": 20, "test": 30}, seed=5)
    large = generate_numbers.build_corpus({"train": 90, "valid": 20, "test": 30}, seed=5)
    assert (small["test"], small["valid"]) == (large["test"], large["valid"])


@pytest.mark.parametrize(
    "options", [("--train", "0"), ("--valid", "-3"), ("--test", "many"), ("--seed", "x")]
)
def test_bad_arguments_give_a_one_line_error(tmp_path, capsys, options):
    with pytest.raises(SystemExit) as stop:
        generate_numbers.main(["--out", str(tmp_path / "out"), *options])
    message = capsys.readouterr().err
    assert stop.value.code == 2
    assert message.count("\n") == 1
    assert options[0] in message
    assert repr(options[1]) in message
    assert not (tmp_path / "out").exists()


def test_too_many_sentences_give_a_one_line_error(tmp_path, capsys, monkeypatch):
    only = carriers.Sentence("Es ist eins.", ("It is one o'clock.",), "clock")
    monkeypatch.setitem(generate_numbers.KINDS, "clock", (1.0, lambda rng: only))
    assert generate_numbers.main(["--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "too many sentences" in message
    assert "'clock'" in message
    assert not (tmp_path / "out").exists()


def test_an_output_path_that_is_a_file_gives_a_one_line_error(tmp_path, capsys):
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    sizes = ["--train", "5", "--valid", "5", "--test", "5"]
    assert generate_numbers.main(["--out", str(tmp_path / "out"), *sizes]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "out").read_text(encoding="utf-8") == "mine"


def test_a_failed_write_keeps_the_old_files(tmp_path, monkeypatch):
    sizes = ["--train", "5", "--valid", "5", "--test", "5"]
    assert generate_numbers.main(["--out", str(tmp_path), *sizes]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_text = Path.write_text

    def full_disk(path: Path, *arguments, **options):
        if "valid.en" in path.name:
            raise OSError("disk full")
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full_disk)
    assert generate_numbers.main(["--out", str(tmp_path), *sizes, "--seed", "2"]) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
