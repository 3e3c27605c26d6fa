"""The folder of a run: its checkpoint, its logs, and what was measured; and how it was trained."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_stochattn.analysis.training_log import TrainingLog, read_log
from fairseq_stochattn.compat import load_checkpoint
from fairseq_stochattn.errors import UsageError

_CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
_LOGS = ("*.log", "*.txt", "*.json", "*.jsonl")


@dataclass(frozen=True)
class Training:
    """What a checkpoint tells of its training."""

    config: dict[str, dict[str, Any]]  # fairseq's groups: model, task, optimization, …
    updates: int | None
    epochs: int | None  # begun, the one going on included
    seconds: float | None
    best: float | None
    parameters: int

    def get(self, group: str, name: str) -> Any:
        return self.config.get(group, {}).get(name)


def find_checkpoint(folder: Path) -> Path | None:
    """The best one, else the last one, else the newest; here or in ``checkpoints``."""
    places = [place for place in (folder, folder / "checkpoints") if place.is_dir()]
    named = [place / name for place in places for name in _CHECKPOINTS]
    others = sorted((x for place in places for x in place.glob("*.pt")), key=_changed, reverse=True)
    return next((path for path in [*named, *others] if path.is_file()), None)


def find_log(folder: Path, training: Training | None) -> tuple[TrainingLog, list[Path]]:
    """What is told of the training, and by which files; tensorboard where no text tells it."""
    places = [folder, folder / "logs", folder / "checkpoints"]
    files = [path for place in places for kind in _LOGS for path in sorted(place.glob(kind))]
    folders = sorted({x.parent.parent for x in folder.rglob("events.out.tfevents.*")})
    if training is not None:
        files += _existing(training.get("common", "log_file"))
        folders += _existing(training.get("common", "tensorboard_logdir"))
    found = [path for path in dict.fromkeys(files) if path.is_file() and read_log([path])]
    found = found or [path for path in folders if read_log([path])][:1]
    return read_log(found), found


def read_training(path: Path) -> Training:
    """From a checkpoint, of which no code is executed."""
    if not path.is_file():
        raise UsageError(f"checkpoint {path} does not exist")
    state = load_checkpoint(str(path))
    if not isinstance(state, dict) or "model" not in state:
        raise UsageError(f"{path} is no fairseq checkpoint: it has no 'model'")
    config = state.get("cfg")
    if config is None and state.get("args") is not None:
        config = {"args": state["args"]}
    history = state.get("optimizer_history") or [{}]
    extra = state.get("extra_state") or {}
    # Tied parameters are stored under each of their names.
    tensors = {x.data_ptr(): x.numel() for x in state["model"].values() if x.is_floating_point()}
    return Training(
        config={name: _plain(group) for name, group in _plain(config).items()},
        updates=history[-1].get("num_updates"),
        epochs=_epochs(**extra.get("train_iterator", {})),
        seconds=extra.get("previous_training_time"),
        best=extra.get("best", extra.get("val_loss")),
        parameters=sum(tensors.values()),
    )


def _epochs(epoch: int = 0, iterations_in_epoch: int = 0, **unused: Any) -> int | None:
    """fairseq counts an epoch on when one has ended."""
    return (epoch if iterations_in_epoch else epoch - 1) or None


def _plain(group: Any) -> dict[str, Any]:
    """A group of settings in any of fairseq's forms."""
    if isinstance(group, DictConfig):
        group = OmegaConf.to_container(group)
    if isinstance(group, Namespace):
        group = vars(group)
    return group if isinstance(group, dict) else {}


def _existing(path: str | None) -> Sequence[Path]:
    return [Path(path)] if path and Path(path).exists() else []


def _changed(path: Path) -> float:
    return path.stat().st_mtime
