"""Reads and checks the file that ``stochattn-evaluate --json`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .json_shape import (
    ShapeError,
    equally_long,
    integer,
    list_of,
    mapping_of,
    number,
    optional,
    read_shaped,
    scalar,
    table,
    text,
)

WRITER = "stochattn-evaluate --json"
_measured = optional(number)  # evaluate writes null for numbers that are not finite
_BIN = table(
    {
        "low": number,
        "high": number,
        "count": integer,
        "confidence": _measured,
        "accuracy": _measured,
    }
)
_CURVE = list_of(number, least=1)


def _bin(value: Any, place: str) -> None:
    """A bin of the reliability diagram: one with predictions has a confidence and an accuracy."""
    _BIN(value, place)
    if value["count"] and None in (value["confidence"], value["accuracy"]):
        raise ShapeError(f"{place} has predictions, but no confidence or no accuracy")


_WORD = table({"word": scalar, "weight": number, "spread": number, "varies": scalar})
_EXAMPLE = table(
    {"id": integer, "text": scalar, "prediction": scalar},
    {
        "words": list_of(_WORD),
        "target": scalar,
        "confidence": _measured,
        "entropy": _measured,
        "mutual_information": _measured,
    },
)
_OUT_OF_DOMAIN = table(
    {
        "auroc": mapping_of(number),
        "entropy_cdf": equally_long(
            dict.fromkeys(("entropy", "in_domain", "out_of_domain"), _CURVE)
        ),
    },
    {"data": scalar, "metrics": mapping_of(_measured), "reliability": list_of(_bin)},
)
_CHECKPOINT = table(
    {"metrics": mapping_of(_measured)},
    {
        "name": optional(text),
        "path": optional(text),
        "signature": optional(text),
        "reliability": optional(list_of(_bin)),
        "risk_coverage": optional(equally_long({"coverage": _CURVE, "risk": _CURVE})),
        "out_of_domain": optional(_OUT_OF_DOMAIN),
        "least_certain": optional(list_of(_EXAMPLE)),
        "meters": optional(mapping_of(_measured)),
    },
)
_COMPARISON = table(
    {"of": text, "with": text, "bleu_difference": number, "p_value": _measured}, {"method": text}
)
_EVALUATION = table(
    {"checkpoints": list_of(_CHECKPOINT, least=1)},
    {
        "data": text,
        "split": text,
        "task": scalar,
        "samples": scalar,
        "image_noise": scalar,
        "comparisons": optional(list_of(_COMPARISON)),
    },
)


def read_evaluation(path: Path) -> dict[str, Any]:
    """The content of the file. Raises ``InputError`` with the cause if it is not an evaluation."""
    return read_shaped(path, _EVALUATION, WRITER)


def with_part(evaluation: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """The checkpoints whose evaluation has this part."""
    return [entry for entry in evaluation["checkpoints"] if entry.get(part)]


def name_of(entry: dict[str, Any]) -> str:
    """The name of a checkpoint for titles and tables."""
    return str(entry.get("name") or entry.get("path") or "model")
