"""Checkpoints and data sets for the commands that use trained models; what does not fit is a line.

Models of plain fairseq and ours, in eval mode; data in batches of similar lengths.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import FairseqDataset
from torch import nn

from fairseq_stochattn.errors import UsageError


@dataclass(frozen=True)
class DataSelection:
    """Which sentences, in which batches."""

    data: str
    subset: str = "valid"
    limit: int | None = None  # only the first of the corpus
    max_tokens: int | None = None
    batch_size: int | None = None
    seed: int | None = None  # None: the one the model was trained with
    skip_long: bool = True  # leave out what is too long for the model, else refuse
    ids: tuple[int, ...] | None = None  # only these, each a batch, in this order


class Loaded(NamedTuple):
    """Models in eval mode with their task; the configuration is that of the last."""

    models: list[nn.Module]
    task: Any
    config: Any


def load_models(paths: Sequence[str], data: str, overrides: dict[str, Any]) -> Loaded:
    """The models of these checkpoints and the task of the first, for ``data``."""
    for part in utils.split_paths(data):
        if not Path(part).is_dir():
            raise UsageError(f"data directory {part} does not exist")
    models, task, config = [], None, None
    for path in paths:
        state = checkpoint_utils.load_checkpoint_to_cpu(path, {**overrides, "data": data})
        # Loading replaces a head that does not fit by a fresh one, which would predict at random.
        stored = {name: value.shape for name, value in state["model"].items()}
        try:
            (model,), config, task = checkpoint_utils.load_model_ensemble_and_task(
                [path], task=task, state=state
            )
        except Exception as error:  # fairseq raises bare ones too
            raise UsageError(f"{path} does not fit the data in {data}: {cause(error)}") from None
        heads = getattr(model, "classification_heads", None)
        for name, value in heads.state_dict().items() if heads is not None else ():
            if stored.get(f"classification_heads.{name}") != value.shape:
                raise UsageError(
                    f"{path} has no head for the labels in {data}: it was trained on other data"
                )
        models.append(model.eval())
    return Loaded(models, task, config)


@dataclass(frozen=True)
class Batches:
    """A data set in batches, collated as they are asked for."""

    dataset: FairseqDataset
    parts: Sequence[np.ndarray]  # indices of the examples of each batch
    selection: DataSelection

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            try:
                sample = self.dataset.collater([self.dataset[int(index)] for index in part])
            except Exception as error:
                where = f"{self.selection.subset} in {self.selection.data}"
                raise UsageError(f"{where} is no set for this task: {cause(error)}") from None
            yield sample


def load_batches(task: Any, models: Sequence[nn.Module], selection: DataSelection) -> Batches:
    """The chosen examples, shortest first."""
    subset, data = selection.subset, selection.data
    try:
        task.load_dataset(subset)
    except Exception as error:
        raise UsageError(f"no {subset} set in {data}: {cause(error)}") from None
    dataset = task.dataset(subset)
    dataset.set_epoch(1)  # masks of a masked LM depend on it: those of fairseq-validate
    if selection.ids is not None:
        for number in selection.ids:
            if not 0 <= number < len(dataset):
                raise UsageError(f"the {subset} set in {data} has no sentence {number}")
        return Batches(dataset, [np.array([number]) for number in selection.ids], selection)
    count = len(dataset) if selection.limit is None else min(selection.limit, len(dataset))
    lengths = np.array([dataset.num_tokens(index) for index in range(count)], dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    positions = utils.resolve_max_positions(
        task.max_positions(), *(model.max_positions() for model in models)
    )
    kept = task.filter_indices_by_size(order, dataset, positions, ignore_invalid_inputs=True)
    if len(kept) < count and not selection.skip_long:
        index = np.setdiff1d(order, kept)[0]
        raise UsageError(
            f"example {index} has {lengths[index]} tokens, the model takes {positions}: "
            f"{_advice(task)}"
        )
    if len(kept) == 0:
        raise UsageError(f"the {subset} set in {data} has no usable sentence")
    most = selection.max_tokens
    parts = dataset.batch_by_size(
        kept,
        # A sentence that is longer makes a batch of its own.
        max_tokens=None if most is None else max(most, int(lengths[kept].max())),
        max_sentences=selection.batch_size,
    )
    return Batches(dataset, parts, selection)


@contextmanager
def other_data(task: Any, data: str, other: str) -> Iterator[None]:
    """Within, the task loads from another directory, which must have the same dictionaries."""
    data, other = utils.split_paths(data)[0], utils.split_paths(other)[0]
    if not Path(other).is_dir():
        raise UsageError(f"data directory {other} does not exist")
    for path in Path(data).rglob("dict*.txt"):
        name = path.relative_to(data)
        if "label" not in name.parts and _symbols(path) != _symbols(Path(other, name)):
            raise UsageError(f"{Path(other, name)} is not the dictionary in {data}, of the model")
    settings = task.cfg if getattr(task, "cfg", None) is not None else task.args
    before, settings.data = settings.data, other
    try:
        yield
    finally:
        settings.data = before


def _symbols(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    return [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").splitlines()]


def _advice(task: Any) -> str:
    if hasattr(getattr(task, "cfg", None), "shorten_method"):
        return "add --model-overrides \"{'shorten_method': 'truncate'}\""
    return "leave such examples out of the data"


def parse_overrides(text: str) -> dict[str, Any]:
    """``--model-overrides``: settings of the checkpoint to change."""
    try:
        return dict(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        raise UsageError(f"--model-overrides: {text} is no dictionary") from None


def chosen_device(cpu: bool) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")


@contextmanager
def warnings_only() -> Iterator[None]:
    """fairseq sets the root logger to DEBUG on import, and every library then tells its life."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(before)


def cause(error: BaseException) -> str:
    """torch lists every mismatch of a state below a title; the first of them says enough."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(lines[:2])
