"""Runs stochattn-evaluate in this process, on checkpoints that fairseq trained."""

from __future__ import annotations

import json
from pathlib import Path

import runner
from fairseq_stochattn.commands import evaluate as command


def run(data: Path, *checkpoints: Path, more: tuple = ()) -> int:
    """Run the command on the CPU; return its exit status."""
    given = (data, "--path", *checkpoints, "--cpu", *more)
    return command.main([str(x) for x in given])


def evaluate(data: Path, *checkpoints: Path, more: tuple = ()) -> dict:
    """Run the command and return the content of its JSON file."""
    out = checkpoints[0].parent / "evaluation.json"
    assert run(data, *checkpoints, more=("--force", "--json", out, *more)) == 0
    return json.loads(out.read_text())


def train(data: Path, folder: Path, arch: str, *flags: object) -> tuple[Path, dict]:
    """Train; return the checkpoint and the last validation log of fairseq."""
    output = runner.train(data, folder, "--arch", arch, *flags)
    return folder / "checkpoint_last.pt", output.stats["valid"][-1]
