"""Bad files, seeds and outputs of the commands that read trained models: one line, no output."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import evaluated
import runner
import sizes
from bad_input import full_disk, randomize, refusal, truncate
from fairseq_stochattn.commands import export, heads, plot, predict, report

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def trained(
    translation_data: Path,
    classification_data: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[ModuleType, list[object]]:
    """Train models for one update; return the arguments with which each command succeeds."""
    folder = tmp_path_factory.mktemp("run")
    arch = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--max-update", 1)
    runner.train(translation_data, folder, *arch)
    arch = ("--arch", "roberta_babn", *sizes.ROBERTA, *sizes.CLASSIFICATION, "--max-update", 1)
    runner.train(classification_data, folder / "labels", *arch, "--criterion", "elbo")
    checkpoint, classifier = (x / "checkpoint_last.pt" for x in (folder, folder / "labels"))
    few = ("--cpu", "--limit", 2, "--sites", "encoder", "--layers", 0)
    return {
        heads: [checkpoint, translation_data, *few],
        plot: ["attention", checkpoint, translation_data, "--cpu", "--id", 0],
        predict: [classification_data, "--path", classifier, "--cpu"],
        report: [folder, "--cpu"],
        export: [checkpoint],
    }


Trained = dict[ModuleType, list[object]]
OUTPUTS = [(heads, "--json"), (heads, "--plot"), (plot, "--output"), (predict, "--output")]
OUTPUTS += [(report, "--output"), (export, None)]
NAMES = {"--json": "out.json", "--plot": "out.png", "--output": "out.svg", None: "out.pt"}


def with_output(trained: Trained, command: ModuleType, flag: str | None, path: object) -> list:
    return [*trained[command], *([flag] if flag else []), path]


@pytest.mark.parametrize(("command", "flag"), OUTPUTS)
def test_full_disk(command: ModuleType, flag: str | None, trained: Trained, tmp_path: Path) -> None:
    """Neither an empty nor a partial file is left, and an existing file is unchanged."""
    out = tmp_path / NAMES[flag]
    arguments = with_output(trained, command, flag, out)
    with full_disk():
        assert f"{out}: File too large" in refusal(command.main, *arguments)
    assert list(tmp_path.iterdir()) == []
    out.write_text("precious")
    force = ["--force"] if command is export else []
    with full_disk():
        assert "File too large" in refusal(command.main, *arguments, *force)
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("command", "flag"), OUTPUTS)
def test_impossible_output(
    command: ModuleType, flag: str | None, trained: Trained, tmp_path: Path
) -> None:
    name = NAMES[flag]
    device = tmp_path / f"device{Path(name).suffix}"
    device.symlink_to("/dev/full")
    (tmp_path / f"folder{Path(name).suffix}").mkdir()
    before = sorted(tmp_path.rglob("*"))
    force = ["--force"] if command is export else []
    for path, cause in (
        (device, "is not a regular file"),
        (tmp_path / f"folder{Path(name).suffix}", "is a directory"),
        (tmp_path / "missing" / name, "missing"),
        (Path("/proc") / name, f".{name}."),  # the name of the partial file
    ):
        assert cause in refusal(command.main, *with_output(trained, command, flag, path), *force)
    assert sorted(tmp_path.rglob("*")) == before
    assert device.is_symlink()


@pytest.mark.parametrize("command", [heads, plot, predict])
@pytest.mark.parametrize("value", ["1e30", "-1", "text", str(2**70), ""])
def test_seeds(command: ModuleType, value: str, trained: Trained, tmp_path: Path) -> None:
    output = ["--output", tmp_path / "out.svg"] if command is plot else []
    line = refusal(command.main, *trained[command], f"--seed={value}", *output)
    assert f"argument --seed: expected a whole number from 0 to 4294967295, not '{value}'" in line


@pytest.mark.parametrize("command", [heads, plot, predict])
@pytest.mark.parametrize(
    ("name", "cause"),
    [("dev", "no dev set in "), ("", "not the name of a split"), ("a/b", "not the name of a")],
)
def test_subsets(
    command: ModuleType, name: str, cause: str, trained: Trained, tmp_path: Path
) -> None:
    output = ["--output", tmp_path / "out.svg"] if command is plot else []
    assert cause in refusal(command.main, *trained[command], "--gen-subset", name, *output)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut index": (lambda data: truncate(data / "input0/valid.idx"), "valid.idx is damaged: it has"),
    "empty index": (
        lambda data: (data / "label/valid.idx").write_bytes(b""),
        "valid.idx is damaged: it does not start like an index",
    ),
    "cut tokens": (
        lambda data: truncate(data / "input0/valid.bin"),
        "valid.bin is damaged: it has",
    ),
    "random tokens": (lambda data: randomize(data / "input0/valid.bin"), "has the token id"),
    "random labels": (lambda data: randomize(data / "label/valid.bin"), "the labels of the data"),
    "no labels": (lambda data: shutil.rmtree(data / "label"), "does not fit the data"),
    "random dictionary": (lambda data: randomize(data / "input0/dict.txt"), "dict.txt"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data(
    damage: str, trained: Trained, classification_data: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(classification_data, data)
    change, cause = DAMAGES[damage]
    change(data)
    out = tmp_path / "out.jsonl"
    assert cause in refusal(predict.main, data, *trained[predict][1:], "--output", out)
    assert not out.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [1],
        lambda state: {**state, "model": [1]},
        lambda state: {**state, "model": {"x": 1}},
        lambda state: {**state, "cfg": 5},
        lambda state: {**state, "cfg": {**state["cfg"], "task": [1]}},
        lambda state: {**state, "cfg": {**state["cfg"], "model": {"_name": "magic"}}},
    ],
    ids=["list", "model is a list", "no tensors", "settings", "task", "arch"],
)
def test_odd_checkpoints(change: Callable[[dict], Any], trained: Trained, tmp_path: Path) -> None:
    bad, out = tmp_path / "bad.pt", tmp_path / "out.svg"
    state = torch.load(trained[export][0], weights_only=True)
    torch.save(change(state), bad)
    data = trained[heads][1]
    for command, *arguments in (
        (export, bad, tmp_path / "out.pt"),
        (export, bad, tmp_path / "out", "--to", "huggingface"),
        (heads, bad, data, "--cpu"),
        (plot, "attention", bad, data, "--id", 0, "--output", out),
        (predict, data, "--path", bad),
        (report, tmp_path, "--checkpoint", bad, "--data", data, "--output", out),
    ):
        refusal(command.main, *arguments)
    assert list(tmp_path.iterdir()) == [bad]


def test_checkpoint_with_odd_counters_is_reported(trained: Trained, tmp_path: Path) -> None:
    """A page does not need these numbers, so they are left out."""
    state = torch.load(trained[export][0], weights_only=True)
    state["optimizer_history"] = [5]
    state["extra_state"] = {"train_iterator": {"epoch": "x"}, "best": "y", "val_loss": [1]}
    torch.save(state, tmp_path / "checkpoint_last.pt")
    assert report.main([str(tmp_path), "--cpu"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "best validation" not in page
    assert "parameters" in page


def test_log_without_statistics(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("nothing\n")
    line = refusal(report.main, *trained[report], "--log", tmp_path / "train.log")
    assert "no training statistics in" in line


def test_text_that_is_too_long(trained: Trained, tmp_path: Path) -> None:
    arguments = [x for x in trained[plot] if x not in ("--id", 0)]
    text = "kaba " * 2000
    line = refusal(plot.main, *arguments, "--text", text, "--output", tmp_path / "x.svg")
    assert "the text has 2001 tokens, the model takes 1024" in line


@pytest.mark.parametrize(
    ("path", "value", "cause"),
    [
        ([], [], "it is not an object"),
        (["checkpoints"], [], "checkpoints has 0 entries"),
        (["checkpoints", 0, "metrics"], [1], "checkpoints[0].metrics is not an object"),
        (["checkpoints", 0, "metrics", "ece"], "x", "checkpoints[0].metrics.ece is not a number"),
        (["checkpoints", 0, "reliability", 5, "accuracy"], None, "no accuracy"),
        (["checkpoints", 0, "reliability", 5, "low"], float("nan"), "not a finite number"),
        (["checkpoints", 0, "risk_coverage", "risk"], [0.5], "have different lengths"),
        (["checkpoints", 0, "out_of_domain", "auroc"], {"a": True}, "auroc.a is not a number"),
        (["checkpoints", 0, "least_certain", 0, "id"], -1, "id is not a whole number"),
        (["comparisons"], [{}], "comparisons[0] has no of"),
        (["split"], 5, "split is not a text"),
    ],
)
def test_evaluations_of_odd_shape(path: list, value: Any, cause: str, tmp_path: Path) -> None:
    content: Any = evaluated.evaluation()
    place = content
    for key in path[:-1]:
        place = place[key]
    if path:
        place[path[-1]] = value
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps(content if path else value))
    for line in (
        refusal(plot.main, "reliability", file, "--output", tmp_path / "out.svg"),
        refusal(report.main, tmp_path, "--output", tmp_path / "out.html"),
    ):
        assert "evaluation.json is not what stochattn-evaluate --json writes: " in line
        assert cause in line
    assert list(tmp_path.iterdir()) == [file]


def test_full_disk_behind_stdout() -> None:
    """Python must not report the same error a second time when it exits."""
    methods = Path(sys.executable).parent / "stochattn-methods"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [methods], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["fairseq_stochattn: No space left on device"]
