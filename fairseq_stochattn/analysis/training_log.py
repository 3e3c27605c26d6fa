"""What a training told: fairseq's log, simple or JSON, or its tensorboard files, as named series.

A series belongs to a part of the run: ``train_inner`` (every --log-interval updates), ``train``
(epochs) and the validated sets, ``valid`` and its like. Where an update is told twice (--log-file
repeats lines, a resumed run goes back) the last word counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fairseq_stochattn.attention.method import SITES
from fairseq_stochattn.errors import UsageError

# What fairseq counts beside losses: speed, sizes, places in the run.
BOOKKEEPING = frozenset(
    (
        *("epoch", "update", "num_updates", "wps", "ups", "wpb", "bsz", "train_wall", "wall"),
        *("lr", "gnorm", "clip", "loss_scale"),
        *("gb_free", "cuda_gb_allocated", "cuda_gb_reserved", "cuda_gb_free"),
    )
)
_INNER = re.compile(r"epoch \d+: +\d+ / \d+ (?P<stats>\S+=.*)$")
_ENDED = re.compile(r"epoch \d+ \| (?:valid on '(?P<subset>[^']+)' subset \| )?(?P<stats>\S+ .*)$")
_OF_LAYER = re.compile(rf"(?P<name>.+)_(?P<site>{'|'.join(SITES)})_(?P<layer>\d+)")
_STEP = "num_updates"


class Series(NamedTuple):
    """A quantity over the updates of a run."""

    updates: list[int]
    values: list[float]


class OfLayer(NamedTuple):
    """A quantity that is told for every layer, such as masked_share_encoder_0."""

    name: str
    site: str
    layer: int


def of_layer(name: str) -> OfLayer | None:
    """What the name of a series says of its place; None where it has none."""
    found = _OF_LAYER.fullmatch(name)
    return OfLayer(found["name"], found["site"], int(found["layer"])) if found else None


class TrainingLog:
    """Series by part of the run and name."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, dict[int, float]]] = {}

    def tell(self, part: str, update: int, stats: Mapping[str, float]) -> None:
        for name, value in stats.items():
            self._told.setdefault(part, {}).setdefault(name, {})[update] = value

    def __bool__(self) -> bool:
        return bool(self._told)

    @property
    def parts(self) -> list[str]:
        return list(self._told)

    @property
    def validated(self) -> list[str]:
        return [part for part in self.parts if part not in ("train", "train_inner")]

    def names(self) -> list[str]:
        """Of all parts, in the order of their appearance."""
        return list(dict.fromkeys(name for told in self._told.values() for name in told))

    def losses(self) -> list[str]:
        """Every named loss and measure of the whole model: no bookkeeping, no single layers."""
        return [
            name
            for name in self.names()
            if not (name in BOOKKEEPING or name.startswith("best_") or of_layer(name))
        ]

    def layers(self) -> dict[tuple[str, str], list[int]]:
        """(quantity, site) → the layers that it is told for."""
        found: dict[tuple[str, str], list[int]] = {}
        for place in filter(None, map(of_layer, self.names())):
            found.setdefault((place.name, place.site), []).append(place.layer)
        return {key: sorted(layers) for key, layers in found.items()}

    def series(self, part: str, name: str) -> Series | None:
        told = self._told.get(part, {}).get(name)
        if not told:
            return None
        updates = sorted(told)
        return Series(updates, [told[update] for update in updates])

    def trained(self, name: str) -> Series | None:
        """In training, as finely as it was told."""
        found = [self.series(part, name) for part in ("train_inner", "train")]
        return max(filter(None, found), key=lambda series: len(series.updates), default=None)


def read_log(paths: Iterable[Path]) -> TrainingLog:
    """The logs of one run: text files, and folders of tensorboard (--tensorboard-logdir)."""
    log = TrainingLog()
    for path in paths:
        if path.is_dir():
            _read_events(path, log)
        elif path.is_file():
            with path.open(encoding="utf-8", errors="replace") as lines:
                for part, stats in filter(None, map(_parse, lines)):
                    if _STEP in stats:
                        log.tell(part, int(stats.pop(_STEP)), stats)
        else:
            raise UsageError(f"log {path} does not exist")
    return log


def _parse(line: str) -> tuple[str, dict[str, float]] | None:
    """A line of fairseq's progress as (part, statistics); None for every other line."""
    line = line.rstrip()
    if '": ' in line and line.endswith("}"):
        return _parse_json(line[line.find("{") :])
    if found := _INNER.search(line):
        pairs = (pair.split("=", 1) for pair in found["stats"].split(", "))
        return "train_inner", _numbers(pairs)
    if found := _ENDED.search(line):
        pairs = (pair.rsplit(" ", 1) for pair in found["stats"].split(" | "))
        return found["subset"] or "train", _numbers(pairs)
    return None


def _parse_json(text: str) -> tuple[str, dict[str, float]] | None:
    try:
        row = json.loads(text)
    except ValueError:
        return None
    # The end of an epoch has its part before every name: valid_loss, valid_num_updates.
    part = next((key.removesuffix(f"_{_STEP}") for key in row if key.endswith(f"_{_STEP}")), None)
    if part is None:
        return "train_inner", _numbers(row.items())
    return part, _numbers((key.removeprefix(f"{part}_"), value) for key, value in row.items())


def _numbers(pairs: Iterable[Sequence]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        with suppress(TypeError, ValueError):  # words among the figures, such as None
            name, value = pair
            found[name] = float(value)
    return found


def _read_events(folder: Path, log: TrainingLog) -> None:
    """fairseq writes one folder a part."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise UsageError(f"{folder} needs tensorboard: pip install tensorboard") from None
    for events in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0})
        accumulator.Reload()
        for name in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(name):
                log.tell(events.name, event.step, {name: event.value})
