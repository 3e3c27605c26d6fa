"""The file that ``stochattn-evaluate --json`` writes, read and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairseq_stochattn.errors import UsageError

# What the parts of a checkpoint's evaluation must have to be drawn.
_PARTS = {
    "reliability": ("low", "high", "confidence", "accuracy", "count"),
    "risk_coverage": ("coverage", "risk"),
    "out_of_domain": ("auroc", "entropy_cdf"),
    "least_certain": ("id", "text", "prediction"),
}


def read_evaluation(path: Path) -> dict[str, Any]:
    """The whole file; what is no evaluation is refused with the cause."""
    if not path.is_file():
        raise UsageError(f"evaluation {path} does not exist (stochattn-evaluate --json writes it)")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"evaluation {path} is no JSON: {error}") from None
    if not (isinstance(found, dict) and isinstance(found.get("checkpoints"), list)):
        raise _foreign(path, "it has no list of checkpoints")
    if not found["checkpoints"]:
        raise _foreign(path, "its list of checkpoints is empty")
    for entry in found["checkpoints"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("metrics"), dict):
            raise _foreign(path, "a checkpoint has no metrics")
        for part, needed in _PARTS.items():
            value = entry.get(part)
            rows = value if isinstance(value, list) else [value] if value is not None else []
            for row in rows:
                missing = [x for x in needed if not isinstance(row, dict) or x not in row]
                if missing:
                    raise _foreign(path, f"a {part} has no {missing[0]}")
    return found


def with_part(evaluation: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """The checkpoints for which this was measured."""
    return [entry for entry in evaluation["checkpoints"] if entry.get(part)]


def name_of(entry: dict[str, Any]) -> str:
    return str(entry.get("name") or entry.get("path") or "model")


def _foreign(path: Path, cause: str) -> UsageError:
    return UsageError(f"{path} is not what stochattn-evaluate --json writes: {cause}")
