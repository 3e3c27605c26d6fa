"""The runner of experiments: killed and started again, twice at once, with a run that fails."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner import ROOT

RUN = ROOT / "examples" / "evidence" / "run.py"
SUITE = """
minutes = 1
baseline = "plain"
seeds = [1, 2, 3]

[[prepare]]
makes = "data"
command = ["data-prep/prepare_pairs.py", "--out", "{makes}", "--source-lang", "de",
    "--target-lang", "en", "--train", "{corpora}/numbers/train",
    "--valid", "{corpora}/numbers/valid", "--test", "{corpora}/numbers/test",
    "--size", "300", "--workers", "1"]

[train]
average = 1
flags = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16",
    "--decoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16", "--decoder-ffn-embed-dim", "16",
    "--encoder-attention-heads", "2", "--decoder-attention-heads", "2", "--dropout", "0.1",
    "--optimizer", "adam", "--lr", "0.01", "--max-tokens", "400", "--max-epoch", "6"]

[evaluate]
flags = ["--samples", "3", "--beam", "2", "--limit", "20"]
test = ["--gen-subset", "test"]
valid = ["--gen-subset", "valid"]

[methods.plain]
train = ["--arch", "transformer"]

[methods.dropout]
trained_as = "plain"
evaluate = ["--retain-dropout"]

[methods.ensemble]
trained_as = "plain"
members = 2

[methods.broken]
train = ["--arch", "transformer", "--dropout", "lots"]

[tuning.wide]
variant_of = "plain"
train = ["--encoder-ffn-embed-dim", "32"]
"""
TIMES = ("seconds", "cpu_seconds", "evaluation_cpu_seconds", "step_seconds", "resumed")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a parallel corpus and the suite."""
    folder = tmp_path_factory.mktemp("evidence")
    generate = ROOT / "data-prep" / "generate_numbers.py"
    sizes = ["--train", "400", "--valid", "40", "--test", "40"]
    words = [sys.executable, str(generate), "--out", str(folder / "numbers"), *sizes]
    subprocess.run(words, check=True)
    (folder / "tiny.toml").write_text(SUITE)
    return folder


def start(corpus: Path, work: Path, *flags: str) -> subprocess.Popen:
    words = [sys.executable, str(RUN), "tiny", "--suites", str(corpus), "--corpora", str(corpus)]
    words += ["--work", str(work), "--results", str(work / "results"), *flags]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen) -> str:
    """Wait for a runner and return what it printed."""
    text, _ = process.communicate(timeout=300)
    process.text = text
    return text


def results(work: Path) -> dict[str, dict]:
    """All results by name, without the times."""
    found = {}
    for path in sorted((work / "results").rglob("*.json")):
        content = json.loads(path.read_text())
        found[path.name] = {k: v for k, v in content.items() if k not in TIMES}
    return found


def training_data(work: Path) -> dict[str, bytes]:
    """The content of all data files that a training reads."""
    paths = (work / "tiny" / "data").rglob("*")
    return {path.name: path.read_bytes() for path in paths if path.suffix in (".bin", ".idx")}


def validation_losses(work: Path) -> dict[str, str]:
    """The validation loss of each epoch; an epoch that was trained again counts once."""
    log = (work / "tiny" / "plain-seed1" / "train.log").read_text()
    return dict(re.findall(r"epoch (\d+) \| valid on .*?\| loss ([\d.]+)", log))


def trainings(work: Path) -> list[int]:
    """Process ids of trainings that write into this folder."""
    found = subprocess.run(
        ["pgrep", "-f", f"fairseq-train {work}"], capture_output=True, text=True
    ).stdout
    return [int(line) for line in found.split()]


def test_a_runner_that_is_killed_and_started_again_writes_the_same_results(
    corpus: Path, tmp_path: Path
) -> None:
    flags = ("--methods", "plain", "dropout", "--seeds", "1")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = start(corpus, whole, *flags)
    finish(reference)
    assert reference.returncode == 0, reference.text
    expected = results(whole)
    assert set(expected) == {"plain-seed1.json", "dropout-seed1.json"}
    chance = random.Random(7)
    for _ in range(3):
        runner = start(corpus, killed, *flags)
        log = killed / "tiny" / "plain-seed1" / "train.log"
        epochs = chance.randint(1, 3)
        deadline = time.monotonic() + 120
        while runner.poll() is None and time.monotonic() < deadline:
            if log.is_file() and log.read_text().count("begin validation") >= epochs:
                break
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.5))
        os.kill(runner.pid, signal.SIGKILL)
        runner.communicate()
        deadline = time.monotonic() + 5
        while trainings(killed) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not trainings(killed), "a training went on without its runner"
    last = start(corpus, killed, *flags)
    finish(last)
    assert last.returncode == 0, last.text
    assert training_data(killed) == training_data(whole)
    assert validation_losses(killed) == validation_losses(whole)
    assert len(validation_losses(whole)) == 6
    assert results(killed) == expected
    # Everything is there now: nothing is run again.
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*.json")}
    assert "0 done, 0 failed" in finish(start(corpus, killed, *flags))
    assert before == {path: path.stat().st_mtime_ns for path in killed.rglob("*.json")}


def test_two_runners_share_the_work_and_a_failed_run_stops_neither(
    corpus: Path, tmp_path: Path
) -> None:
    flags = ("--methods", "broken", "plain", "ensemble", "--seeds", "1", "2", "3")
    runners = [start(corpus, tmp_path, *flags) for _ in range(2)]
    texts = [finish(runner) for runner in runners]
    assert all(runner.returncode in (0, 1) for runner in runners), texts
    text = finish(start(corpus, tmp_path, *flags))  # whatever both left to each other
    names = {f"{m}-seed{n}.json" for m in ("plain", "ensemble") for n in (1, 2, 3)}
    assert set(results(tmp_path)) == names
    for seed in (1, 2, 3):
        log = (tmp_path / "tiny" / f"plain-seed{seed}" / "train.log").read_text()
        assert log.count("$ ") == 1, "a model was trained twice"
    for word in ("broken-seed1: FAILED", "lots", "train.log"):
        assert word in text
    assert "Traceback" not in "".join(texts) + text
    ensemble = results(tmp_path)["ensemble-seed1.json"]
    assert ensemble["split"] == "test"
    assert ensemble["measures"]["mutual_information"] > 0  # the two members differ
    plain = results(tmp_path)["plain-seed1.json"]
    for field in ("suite", "task", "method", "seed", "settings", "versions", "commit", "meters"):
        assert field in plain
    assert {"bleu", "nll", "ece", "aurc"} <= set(plain["measures"])
    assert len(plain["bleu_statistics"]) == 20


def test_tuning_variants_use_their_own_seeds_split_and_folder(corpus: Path, tmp_path: Path) -> None:
    runner = start(corpus, tmp_path, "--methods", "wide", "--seeds", "101")
    text = finish(runner)
    assert runner.returncode == 0, text
    result = json.loads((tmp_path / "results/tiny/tuning/wide-seed101.json").read_text())
    assert result["split"] == "valid"
    assert result["settings"]["train"][-2:] == ["--encoder-ffn-embed-dim", "32"]
    text = finish(start(corpus, tmp_path, "--methods", "wide", "--seeds", "1"))
    assert "seeds are 101 and above" in text
    assert text.count("\n") == 1


def test_the_plan_says_what_is_missing(corpus: Path, tmp_path: Path) -> None:
    text = finish(start(corpus, tmp_path, "--dry-run", "--methods", "plain", "dropout"))
    assert "6 results and 3 trainings are missing" in text
    assert not (tmp_path / "tiny").exists()
    for flags, message in (
        (["--methods", "nothing"], "tiny: unknown method 'nothing' (known: plain, dropout, "),
        (["--tasks", "RTE"], "tiny: unknown task 'RTE' (known: none)"),
        (
            ["--methods", "ensemble", "--seeds", "101"],
            "ensemble is an ensemble: it has results only for the seeds 1, 2, 3, not for 101",
        ),
    ):
        text = finish(start(corpus, tmp_path, "--dry-run", *flags))
        assert message in text
        assert "Traceback" not in text


def test_the_budget_stops_a_run_which_goes_on_later(corpus: Path, tmp_path: Path) -> None:
    runner = start(corpus, tmp_path, "--methods", "plain", "--seeds", "1", "--budget", "0.12")
    text = finish(runner)
    assert runner.returncode == 0, text
    assert "1 left for another call" in text
    assert not results(tmp_path)
    assert not trainings(tmp_path)


PROGRAM = """
import json, sys
arguments = sys.argv[1:]
value = {name: arguments[arguments.index(name) + 1] for name in ("--seed", "--output", "--split")}
if "--fail" in arguments:
    sys.exit("no luck")
result = {"accuracy": 50 + int(value["--seed"]), "split": value["--split"], "epochs": 3}
open(value["--output"] + "/result.json", "w").write(json.dumps(result))
"""
OWN_PROGRAM = """
minutes = 1
baseline = "plain"
seeds = [1, 2, 3]
[train]
program = ["PROGRAM", "--output", "{output}"]
flags = []
[evaluate]
test = ["--split", "test"]
valid = ["--split", "dev"]
[methods.plain]
[methods.broken]
train = ["--fail"]
"""


def test_a_suite_may_train_and_evaluate_with_its_own_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "own.toml").write_text(OWN_PROGRAM.replace("PROGRAM", str(tmp_path / "program.py")))
    words = [sys.executable, str(RUN), "own", "--suites", str(tmp_path), "--seeds", "2", "101"]
    words += ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "broken-seed2: FAILED" in done.stdout
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.rglob("plain*.json")}
    assert found["plain-seed2.json"]["measures"]["accuracy"] == 52
    assert found["plain-seed2.json"]["split"] == "test"
    assert found["plain-seed101.json"]["settings"]["evaluate"] == ["--split", "dev"]
    assert not list(tmp_path.rglob("broken*.json"))
