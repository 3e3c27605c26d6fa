"""fairseq's own commands for tests: in this process (fast) or as real subprocesses."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from fairseq import checkpoint_utils
from fairseq.logging import metrics, progress_bar
from fairseq_cli import eval_lm as eval_lm_cli
from fairseq_cli import generate as generate_cli
from fairseq_cli import interactive as interactive_cli
from fairseq_cli import preprocess as preprocess_cli
from fairseq_cli import train as train_cli
from fairseq_cli import validate as validate_cli

ROOT = Path(__file__).resolve().parents[1]
USER_DIR = ROOT / "fairseq_stochattn"


@dataclass
class Output:
    """What a command printed, and the JSON lines of its progress log by tag."""

    text: str
    stats: dict[str, list[dict]] = field(default_factory=dict)

    def losses(self, tag: str = "train_inner") -> list[float]:
        return [float(row["loss"]) for row in self.stats.get(tag, [])]


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.getMessage()))


def _call(main, *args: object) -> Output:
    """Run a ``cli_main`` in this process with fairseq's global state as in a fresh one."""
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        del checkpoint_utils.save_checkpoint.best
    metrics.reset()
    progress_bar._tensorboard_writers.clear()  # else the folder of the first run stays in use
    recorder, progress, printed = _Recorder(), _Recorder(), io.StringIO()
    root, bars = logging.getLogger(), logging.getLogger("fairseq.logging.progress_bar")
    root.addHandler(recorder)
    bars.addHandler(progress)
    try:
        with (
            mock.patch.object(sys, "argv", ["fairseq", *map(str, args)]),
            contextlib.redirect_stdout(printed),
        ):
            main()
    finally:
        root.removeHandler(recorder)
        bars.removeHandler(progress)
    stats: dict[str, list[dict]] = {}
    for name, message in progress.lines:
        with contextlib.suppress(ValueError):
            row = json.loads(message)
            if isinstance(row, dict):
                stats.setdefault(name, []).append(row)
    log = "\n".join(message for _, message in recorder.lines)
    return Output(f"{printed.getvalue()}\n{log}", stats)


def preprocess(*args: object, out: Path) -> Output:
    return _call(preprocess_cli.cli_main, *args, "--destdir", out, "--workers", 1)


TRAIN = (
    *("--cpu", "--num-workers", 0, "--optimizer", "adam", "--lr", 0.005, "--max-tokens", 400),
    *("--log-format", "json", "--log-interval", 1, "--no-epoch-checkpoints", "--seed", 3),
)


def train(data: Path, save: Path, *args: object, user_dir: object = USER_DIR) -> Output:
    plugin = [] if user_dir is None else ["--user-dir", user_dir]
    return _call(train_cli.cli_main, data, *plugin, *TRAIN, "--save-dir", save, *args)


def generate(data: Path, checkpoint: object, *args: object) -> Output:
    common = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16]
    return _call(generate_cli.cli_main, data, "--path", checkpoint, *common, *args)


def validate(data: Path, checkpoint: object, *args: object) -> Output:
    common = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16]
    common += ["--task", "translation", "--log-format", "json"]
    return _call(validate_cli.cli_main, data, "--path", checkpoint, *common, *args)


def eval_lm(data: Path, checkpoint: object) -> Output:
    common = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16]
    return _call(eval_lm_cli.cli_main, data, "--path", checkpoint, *common)


def interactive(data: Path, checkpoint: object, sentences: Path) -> Output:
    common = ["--user-dir", USER_DIR, "--cpu", "--input", sentences, "--buffer-size", 4]
    return _call(interactive_cli.cli_main, data, "--path", checkpoint, *common)


def start(command: str, *args: object, cwd: Path = ROOT) -> subprocess.Popen:
    """A real installed command as a subprocess."""
    executable = Path(sys.executable).parent / command
    return subprocess.Popen(
        [str(executable), *map(str, args)],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen) -> subprocess.CompletedProcess:
    stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def train_on_two_ranks(data: Path, save: Path, *args: object) -> None:
    """fairseq-train in two processes that share the batches."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        start(
            "fairseq-train",
            *(data, "--user-dir", USER_DIR, *TRAIN, "--save-dir", save, *args),
            *("--distributed-world-size", 2, "--distributed-rank", rank),
            *("--distributed-init-method", f"tcp://127.0.0.1:{port}", "--distributed-no-spawn"),
            *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
        )
        for rank in (0, 1)
    ]
    for result in map(finish, ranks):
        assert result.returncode == 0, result.stderr[-2000:]


def run(command: str, *args: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return finish(start(command, *args, cwd=cwd))
