"""Loads checkpoints and data sets for the commands that use trained models.

Checkpoints may come from plain fairseq or from this package. Models are in eval mode. Each batch
has examples of similar length. A checkpoint that does not fit the data raises ``InputError``.
"""

from __future__ import annotations

import ast
import logging
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import FairseqDataset
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ..core.errors import InputError
from ..core.json_input import short
from .data_files import Vocabularies, require_complete, require_folders, require_known_tokens
from .fairseq_errors import cause as cause  # read by the commands
from .fairseq_errors import reading


@dataclass(frozen=True)
class DataSelection:
    """Which examples of a data set to load, and how to batch them."""

    data: str
    subset: str = "valid"
    limit: int | None = None  # None: all examples; else only the first ``limit`` ones
    max_tokens: int | None = None
    batch_size: int | None = None
    seed: int | None = None  # None: the seed of the training run
    skip_long: bool = True  # True: skip examples that are too long for the model; False: raise
    # None: choose by ``limit``; else only these examples, in this order, one per batch.
    ids: tuple[int, ...] | None = None


class Loaded(NamedTuple):
    """Models in eval mode, their task, and the configuration of the last checkpoint."""

    models: list[nn.Module]
    task: Any
    config: Any


def load_models(paths: Sequence[str], data: str, overrides: dict[str, Any]) -> Loaded:
    """Load the models of all checkpoints, and the task of the first checkpoint for ``data``."""
    require_folders(data)
    models, task, config = [], None, None
    for path in paths:
        with no_warnings():
            state = checkpoint_utils.load_checkpoint_to_cpu(path, {**overrides, "data": data})
        # fairseq replaces a classification head of the wrong size by an untrained one without an
        # error, so the sizes are compared below.
        stored = {name: value.shape for name, value in state["model"].items()}
        with reading(f"{path} does not fit the data in {data}"), no_warnings():
            (model,), config, task = checkpoint_utils.load_model_ensemble_and_task(
                [path], task=task, state=state
            )
        require_finite(path, model)
        heads = getattr(model, "classification_heads", None)
        for name, value in heads.state_dict().items() if heads is not None else ():
            if stored.get(f"classification_heads.{name}") != value.shape:
                raise InputError(
                    f"{path} has no head for the labels in {data}: it was trained on other data"
                )
        models.append(model.eval())
    return Loaded(models, task, config)


def require_finite(path: str, model: nn.Module) -> None:
    """Raise ``InputError`` if a weight of the model is NaN or infinite."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise InputError(
                f"{path}: {name} is not finite, so the training has diverged; use an earlier "
                "checkpoint"
            )


@dataclass(frozen=True)
class Batches:
    """A data set in batches. Each batch is collated when the iteration reaches it."""

    dataset: FairseqDataset
    parts: Sequence[np.ndarray]  # the indices of the examples in each batch
    selection: DataSelection
    known: Vocabularies

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        where = f"the {self.selection.subset} set in {self.selection.data}"
        for part in self.parts:
            with reading(f"{where} does not fit this task"):
                batch = self.dataset.collater([self.dataset[int(index)] for index in part])
            require_known_tokens(batch, self.known, where)
            yield batch


def load_batches(task: Any, models: Sequence[nn.Module], selection: DataSelection) -> Batches:
    """The selected examples in batches, shortest first."""
    subset, data = selection.subset, selection.data
    require_complete(data, subset)
    with reading(f"no {subset} set in {data}"):
        task.load_dataset(subset)
        dataset = task.dataset(subset)
    known = Vocabularies.of(task)
    # The masks of a masked language model depend on the epoch; fairseq-validate uses epoch 1.
    dataset.set_epoch(1)
    if selection.ids is not None:
        for number in selection.ids:
            if not 0 <= number < len(dataset):
                raise InputError(f"the {subset} set in {data} has no sentence {number}")
        return Batches(dataset, [np.array([number]) for number in selection.ids], selection, known)
    count = len(dataset) if selection.limit is None else min(selection.limit, len(dataset))
    lengths = np.array([dataset.num_tokens(index) for index in range(count)], dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    positions = utils.resolve_max_positions(
        task.max_positions(), *(model.max_positions() for model in models)
    )
    kept = task.filter_indices_by_size(order, dataset, positions, ignore_invalid_inputs=True)
    if len(kept) < count and not selection.skip_long:
        index = np.setdiff1d(order, kept)[0]
        raise InputError(
            f"example {index} has {lengths[index]} tokens, the model takes {positions}: "
            f"{_advice(task)}"
        )
    if len(kept) == 0:
        raise InputError(f"the {subset} set in {data} has no usable sentence")
    max_tokens = selection.max_tokens
    parts = dataset.batch_by_size(
        kept,
        # fairseq refuses max_tokens below the length of an example.
        max_tokens=None if max_tokens is None else max(max_tokens, int(lengths[kept].max())),
        max_sentences=selection.batch_size,
    )
    return Batches(dataset, parts, selection, known)


@contextmanager
def other_data(task: Any, data: str, other: str) -> Iterator[None]:
    """Within the block, the task loads its data from ``other`` instead of ``data``.

    Raises ``InputError`` if the two directories have different dictionaries.
    """
    data, other = utils.split_paths(data)[0], utils.split_paths(other)[0]
    if not Path(other).is_dir():
        raise InputError(f"data directory {other} does not exist")
    for path in Path(data).rglob("dict*.txt"):
        name = path.relative_to(data)
        if "label" not in name.parts and _symbols(path) != _symbols(Path(other, name)):
            raise InputError(
                f"{Path(other, name)} is not the dictionary in {data}, which the model uses"
            )
    config = task.cfg if getattr(task, "cfg", None) is not None else task.args
    previous, config.data = config.data, other
    try:
        yield
    finally:
        config.data = previous


def labels_fit(task: Any, data: str, other: str, subset: str) -> bool:
    """Whether the labels of a split of ``other`` mean the same as those of ``data``.

    This holds if both have the same classes, or if the task has no names for its classes.
    """
    data, other = utils.split_paths(data)[0], utils.split_paths(other)[0]
    folder = Path(other, "label")
    if not Path(data, "label").is_dir():
        return True  # the targets are tokens, whose dictionaries are compared
    if not any((folder / f"{subset}{end}").is_file() for end in (".bin", ".label")):
        return False
    classes = (_symbols(Path(place, "label", "dict.txt")) for place in (data, other))
    return len({None if x is None else tuple(x) for x in classes}) == 1


def _symbols(path: Path) -> list[str] | None:
    """The symbols of a dictionary file without their counts, or None if the file is missing."""
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return [line.rsplit(" ", 1)[0] for line in text.splitlines()]


def _advice(task: Any) -> str:
    """Advice for the error message about examples that are too long."""
    if hasattr(getattr(task, "cfg", None), "shorten_method"):
        return "add --model-overrides \"{'shorten_method': 'truncate'}\""
    return "leave such examples out of the data"


def parse_overrides(text: str) -> dict[str, Any]:
    """The dictionary given as ``--model-overrides``, which replaces settings of a checkpoint."""
    try:
        overrides = dict(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        # Python's parser raises MemoryError for expressions that are nested too deeply.
        raise InputError(f"--model-overrides: {short(text)} is not a dictionary") from None
    if not all(isinstance(name, str) for name in overrides):
        raise InputError(f"--model-overrides: {short(text)} has a name that is not a text")
    return overrides


def require_settings(overrides: Mapping[str, Any], config: Any) -> None:
    """Raise ``InputError`` if ``--model-overrides`` has a name that the checkpoint does not have.

    fairseq ignores such names. ``config`` is the configuration of the checkpoint.
    """
    known = {"data", *_setting_names(config)}
    for name in overrides:
        if name not in known:
            raise InputError(f"--model-overrides: the checkpoint has no setting '{short(name)}'")


def _setting_names(config: Any) -> Iterator[str]:
    """Yield the names of all settings, of all groups."""
    group = vars(config) if isinstance(config, Namespace) else config
    for name in group if isinstance(group, (dict, DictConfig)) else ():
        yield name
        if isinstance(group, DictConfig) and OmegaConf.is_missing(group, name):
            continue
        yield from _setting_names(group[name])


def chosen_device(cpu: bool) -> torch.device:
    """The GPU if one is available and ``cpu`` is False, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")


@contextmanager
def warnings_only() -> Iterator[None]:
    """Within the block, only warnings and errors are logged.

    fairseq sets the root logger to DEBUG on import, so that every library logs everything.
    """
    root = logging.getLogger()
    previous = root.level
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(previous)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Within the block, Python warnings are hidden, such as hydra's about how fairseq calls it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
