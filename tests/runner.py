"""Run fairseq's own commands in tests: in this process, which is fast, or as subprocesses."""

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

from fairseq import checkpoint_utils
from fairseq.logging import metrics, progress_bar
from fairseq_cli import eval_lm as eval_lm_cli
from fairseq_cli import generate as generate_cli
from fairseq_cli import interactive as interactive_cli
from fairseq_cli import preprocess as preprocess_cli
from fairseq_cli import train as train_cli
from fairseq_cli import validate as validate_cli

from fairseq_stochattn.commands.command import replaced

ROOT = Path(__file__).resolve().parents[1]
USER_DIR = ROOT / "fairseq_stochattn"


@dataclass
class Output:
    """The output of a command, and the JSON lines of its progress log by tag."""

    text: str
    stats: dict[str, list[dict]] = field(default_factory=dict)

    def losses(self, tag: str = "train_inner") -> list[float]:
        """Return the logged loss of every update."""
        return [float(row["loss"]) for row in self.stats.get(tag, [])]


class _Recorder(logging.Handler):
    """Keeps the name and the message of every log record."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.getMessage()))


def _call(main, *args: object) -> Output:
    """Run a ``cli_main`` in this process, with fairseq's global state reset."""
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        del checkpoint_utils.save_checkpoint.best
    metrics.reset()
    progress_bar._tensorboard_writers.clear()  # or it would use the folder of the first run
    recorder, progress, printed = _Recorder(), _Recorder(), io.StringIO()
    root, bars = logging.getLogger(), logging.getLogger("fairseq.logging.progress_bar")
    root.addHandler(recorder)
    bars.addHandler(progress)
    try:
        with (
            replaced(sys, "argv", ["fairseq", *map(str, args)]),
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
    """Run fairseq-preprocess into the folder ``out``."""
    return _call(preprocess_cli.cli_main, *args, "--destdir", out, "--workers", 1)


TRAIN = (
    *("--cpu", "--num-workers", 0, "--optimizer", "adam", "--lr", 0.005, "--max-tokens", 400),
    *("--log-format", "json", "--log-interval", 1, "--no-epoch-checkpoints", "--seed", 3),
)


def train(data: Path, save: Path, *args: object, user_dir: object = USER_DIR) -> Output:
    """Run fairseq-train; ``user_dir`` None runs it without the plugin."""
    plugin = [] if user_dir is None else ["--user-dir", user_dir]
    return _call(train_cli.cli_main, data, *plugin, *TRAIN, "--save-dir", save, *args)


def train_on_two_ranks(
    data: Path,
    save: Path,
    *args: object,
    user_dir: object = USER_DIR,
    ddp_backend: str = "legacy_ddp",
) -> list:
    """Run fairseq-train in two processes and return both results; both must succeed."""
    flags = ("--ddp-backend", ddp_backend, "--save-dir", save, *args)
    results = [finish(rank) for rank in start_two_ranks(data, *flags, user_dir=user_dir)]
    for result in results:
        assert result.returncode == 0, result.stderr[-2000:]
    return results


def start_two_ranks(
    data: Path, *args: object, user_dir: object = USER_DIR, of_second: tuple = ()
) -> list[subprocess.Popen]:
    """Start fairseq-train in two processes; ``of_second`` are flags of rank 1 alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        start(
            "fairseq-train",
            *(data, "--user-dir", user_dir, *TRAIN, *args, *own),
            *("--distributed-world-size", 2, "--distributed-rank", rank),
            *("--distributed-init-method", f"tcp://127.0.0.1:{port}", "--distributed-no-spawn"),
            *("--distributed-backend", "gloo"),
        )
        for rank, own in enumerate(((), of_second))
    ]


def generate(data: Path, checkpoint: object, *args: object) -> Output:
    """Run fairseq-generate."""
    common = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16]
    return _call(generate_cli.cli_main, data, "--path", checkpoint, *common, *args)


def validate(data: Path, checkpoint: object, *args: object) -> Output:
    """Run fairseq-validate, by default for translation."""
    common = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16]
    common += ["--task", "translation", "--log-format", "json"]
    return _call(validate_cli.cli_main, data, "--path", checkpoint, *common, *args)


def eval_lm(data: Path, checkpoint: object) -> Output:
    """Run fairseq-eval-lm."""
    common = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16]
    return _call(eval_lm_cli.cli_main, data, "--path", checkpoint, *common)


def interactive(data: Path, checkpoint: object, sentences: Path) -> Output:
    """Run fairseq-interactive on a file of sentences."""
    common = ["--user-dir", USER_DIR, "--cpu", "--input", sentences, "--buffer-size", 4]
    return _call(interactive_cli.cli_main, data, "--path", checkpoint, *common)


def start(command: str, *args: object, cwd: Path = ROOT) -> subprocess.Popen:
    """Start an installed command as a subprocess."""
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
    """Wait for a subprocess and return its output."""
    stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run(command: str, *args: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run an installed command as a subprocess and return its output."""
    return finish(start(command, *args, cwd=cwd))
