"""Reads fairseq's training logs (simple, JSON or tensorboard) into named series of numbers.

A series belongs to a part of the run: ``train_inner`` (every --log-interval updates), ``train``
(every epoch), or a validation set such as ``valid``. If an update occurs twice, its last value is
used. This happens because --log-file repeats lines, and because a resumed run repeats updates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError
from ..core.json_input import parse_json
from ..core.optional import optional_import
from ..core.selection import SITES
from .json_shape import LARGEST

# Statistics that fairseq logs and that are not losses: speed, sizes, progress.
BOOKKEEPING = frozenset(
    (
        *("epoch", "update", "num_updates", "wps", "ups", "wpb", "bsz", "train_wall", "wall"),
        *("lr", "gnorm", "clip", "loss_scale"),
        *("gb_free", "cuda_gb_allocated", "cuda_gb_reserved", "cuda_gb_free"),
    )
)
_INNER = re.compile(r"epoch \d+: +\d+ / \d+ (?P<stats>\S+=.*)$")
_ENDED = re.compile(r"epoch \d+ \| (?:valid on '(?P<subset>[^']+)' subset \| )?(?P<stats>\S+ .*)$")
_OF_LAYER = re.compile(rf"(?P<name>.+)_(?P<site>{'|'.join(SITES)})_(?P<layer>[0-9]{{1,4}})")
_STEP = "num_updates"


class Series(NamedTuple):
    """The values of one quantity over the updates of a run."""

    updates: list[int]
    values: list[float]


class OfLayer(NamedTuple):
    """The parts of a name such as ``masked_share_encoder_0``, a quantity of one layer."""

    name: str
    site: str
    layer: int


def of_layer(name: str) -> OfLayer | None:
    """Split the name of a series into quantity, site and layer; None for a name without layer."""
    match = _OF_LAYER.fullmatch(name)
    return OfLayer(match["name"], match["site"], int(match["layer"])) if match else None


class TrainingLog:
    """Series of numbers by part of the run and name."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, dict[int, float]]] = {}

    def add(self, part: str, update: int, stats: Mapping[str, float]) -> None:
        """Add the statistics of one update, in place of earlier ones for the same update."""
        for name, value in stats.items():
            self._values.setdefault(part, {}).setdefault(name, {})[update] = value

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def parts(self) -> list[str]:
        return list(self._values)

    @property
    def validated(self) -> list[str]:
        """The names of the validation sets."""
        return [part for part in self.parts if part not in ("train", "train_inner")]

    def names(self) -> list[str]:
        """The names of all series, in the order of their appearance."""
        return list(dict.fromkeys(name for by_name in self._values.values() for name in by_name))

    def losses(self) -> list[str]:
        """The names of all losses and measures of the whole model, without ``BOOKKEEPING``."""
        return [
            name
            for name in self.names()
            if not (name in BOOKKEEPING or name.startswith("best_") or of_layer(name))
        ]

    def layers(self) -> dict[tuple[str, str], list[int]]:
        """A dictionary (quantity, site) → layers for which the quantity was logged."""
        layers: dict[tuple[str, str], list[int]] = {}
        for place in filter(None, map(of_layer, self.names())):
            layers.setdefault((place.name, place.site), []).append(place.layer)
        return {key: sorted(indices) for key, indices in layers.items()}

    def series(self, part: str, name: str) -> Series | None:
        """One quantity in one part of the run, sorted by update, or None if it was not logged."""
        values = self._values.get(part, {}).get(name)
        if not values:
            return None
        updates = sorted(values)
        return Series(updates, [values[update] for update in updates])

    def trained(self, name: str) -> Series | None:
        """One quantity during training, from the part (train_inner or train) with more values."""
        candidates = [self.series(part, name) for part in ("train_inner", "train")]
        return max(filter(None, candidates), key=lambda series: len(series.updates), default=None)


def read_log(paths: Iterable[Path]) -> TrainingLog:
    """Read the logs of one run: text files, or tensorboard folders (--tensorboard-logdir)."""
    log = TrainingLog()
    for path in paths:
        if path.is_dir():
            _read_events(path, log)
        elif path.is_file():
            with path.open(encoding="utf-8", errors="replace") as lines:
                for part, stats in filter(None, map(_parse, lines)):
                    if math.isfinite(stats.get(_STEP, math.nan)):
                        log.add(part, int(stats.pop(_STEP)), stats)
        else:
            raise InputError(f"log {path} does not exist")
    return log


def _parse(line: str) -> tuple[str, dict[str, float]] | None:
    """The part and the statistics of a line, or None for a line without statistics."""
    line = line.rstrip()
    if '": ' in line and line.endswith("}"):
        return _parse_json(line[line.find("{") :])
    if match := _INNER.search(line):
        pairs = (pair.split("=", 1) for pair in match["stats"].split(", "))
        return "train_inner", _numbers(pairs)
    if match := _ENDED.search(line):
        pairs = (pair.rsplit(" ", 1) for pair in match["stats"].split(" | "))
        return match["subset"] or "train", _numbers(pairs)
    return None


def _parse_json(text: str) -> tuple[str, dict[str, float]] | None:
    """The part and the statistics of a JSON object, or None if the text is not JSON."""
    try:
        row = parse_json(text)
    except ValueError:
        return None
    # At the end of an epoch, every name starts with the part: valid_loss, valid_num_updates.
    part = next((key.removesuffix(f"_{_STEP}") for key in row if key.endswith(f"_{_STEP}")), None)
    if part is None:
        return "train_inner", _numbers(row.items())
    return part, _numbers((key.removeprefix(f"{part}_"), value) for key, value in row.items())


def _numbers(pairs: Iterable[Sequence]) -> dict[str, float]:
    """The pairs (name, value) whose value is a number."""
    numbers = {}
    for pair in pairs:
        with suppress(TypeError, ValueError, OverflowError):  # not a number, such as None
            name, value = pair
            number = float(value)
            numbers[name] = number if abs(number) <= LARGEST else number * math.inf
    return numbers


def _read_events(folder: Path, log: TrainingLog) -> None:
    """Add the numbers in tensorboard's files. fairseq writes one folder per part of the run."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    events_module = optional_import(module, f"reading {folder}", extra=None)
    for events in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        accumulator = events_module.EventAccumulator(str(events), size_guidance={"scalars": 0})
        accumulator.Reload()
        for name in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(name):
                log.add(events.name, event.step, {name: event.value})
