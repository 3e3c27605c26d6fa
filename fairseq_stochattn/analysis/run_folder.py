"""Finds the checkpoint and the logs in the folder of a run, and reads the training settings."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..compat import load_checkpoint, require_weights
from ..core.errors import InputError
from .json_shape import LARGEST
from .training_log import TrainingLog, read_log

_CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
_LOGS = ("*.log", "*.txt", "*.json", "*.jsonl")


@dataclass(frozen=True)
class Training:
    """The settings and results of training that a checkpoint stores."""

    config: dict[str, dict[str, Any]]  # fairseq's groups: model, task, optimization, …
    updates: int | None
    epochs: int | None  # number of started epochs, including an unfinished one
    seconds: float | None
    best: float | None  # best value of fairseq's --best-checkpoint-metric so far
    parameters: int

    def get(self, group: str, name: str) -> Any:
        return self.config.get(group, {}).get(name)


def find_checkpoint(folder: Path) -> Path | None:
    """The best checkpoint of a run, else the last one, else the newest ``.pt`` file, else None.

    The folder and its subfolder ``checkpoints`` are searched.
    """
    places = [place for place in (folder, folder / "checkpoints") if place.is_dir()]
    named = [place / name for place in places for name in _CHECKPOINTS]
    others = sorted((x for place in places for x in place.glob("*.pt")), key=_changed, reverse=True)
    return next((path for path in [*named, *others] if path.is_file()), None)


def find_log(folder: Path, training: Training | None) -> tuple[TrainingLog, list[Path]]:
    """The training log of a run, and the files that it was read from.

    Files of tensorboard are read only if the run has no text log.
    """
    places = [folder, folder / "logs", folder / "checkpoints"]
    files = [path for place in places for kind in _LOGS for path in sorted(place.glob(kind))]
    folders = sorted({x.parent.parent for x in folder.rglob("events.out.tfevents.*")})
    if training is not None:
        files += _existing(training.get("common", "log_file"))
        folders += _existing(training.get("common", "tensorboard_logdir"))
    sources = [path for path in dict.fromkeys(files) if path.is_file() and read_log([path])]
    sources = sources or [path for path in folders if read_log([path])][:1]
    return read_log(sources), sources


def read_training(path: Path) -> Training:
    """Read a checkpoint without executing code from it."""
    if not path.is_file():
        raise InputError(f"checkpoint {path} does not exist")
    state = load_checkpoint(str(path))
    require_weights(path, state)
    config = state.get("cfg")
    if config is None and state.get("args") is not None:
        config = {"args": state["args"]}
    history = state.get("optimizer_history")
    last = _plain(history[-1]) if isinstance(history, list) and history else {}
    extra = _plain(state.get("extra_state"))
    # Tied parameters are stored under several names but share their memory, so that counting by
    # address counts them once.
    tensors = {x.data_ptr(): x.numel() for x in state["model"].values() if x.is_floating_point()}
    return Training(
        config={name: _plain(group) for name, group in _plain(config).items()},
        updates=_number(last.get("num_updates")),
        epochs=_epochs(_plain(extra.get("train_iterator"))),
        seconds=_number(extra.get("previous_training_time")),
        best=_number(extra.get("best", extra.get("val_loss"))),
        parameters=sum(tensors.values()),
    )


def _epochs(iterator: dict[str, Any]) -> int | None:
    """The number of started epochs, given that fairseq increments ``epoch`` after each epoch."""
    epoch = _number(iterator.get("epoch", 0))
    if epoch is None:
        return None
    return (epoch if iterator.get("iterations_in_epoch") else epoch - 1) or None


def _number(value: Any) -> Any:
    """The value if it is a number (of Python or numpy), else None."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    return value if abs(value) < LARGEST or not isinstance(value, int) else None


def _plain(group: Any) -> dict[str, Any]:
    """A group of settings as a dictionary. fairseq stores DictConfig, Namespace or dict."""
    if isinstance(group, DictConfig):
        group = OmegaConf.to_container(group)
    if isinstance(group, Namespace):
        group = vars(group)
    return group if isinstance(group, dict) else {}


def _existing(path: str | None) -> Sequence[Path]:
    """A list with the path, or an empty list if the path does not exist."""
    return [Path(path)] if path and Path(path).exists() else []


def _changed(path: Path) -> float:
    """The time at which the file was last changed."""
    return path.stat().st_mtime
