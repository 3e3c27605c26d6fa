"""The heads of one or two models as a table for the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fairseq_stochattn.errors import UsageError


@dataclass(frozen=True)
class LayerReport:
    """The heads of one attention module."""

    site: str
    layer: int
    name: str  # of the module
    dist: float | None  # None for a single head
    importance: list[float]  # of head 0, 1, …


@dataclass(frozen=True)
class HeadReport:
    """All heads of one model."""

    checkpoint: str
    sentences: int
    metric: str  # loss or bleu
    unit: str
    score: float  # the metric with all heads
    signature: str | None  # of BLEU
    layers: list[LayerReport]

    @property
    def effect(self) -> str:
        """What importance is, with its unit."""
        return "drop of BLEU (points)" if self.metric == "bleu" else f"rise of loss ({self.unit})"

    @property
    def sites(self) -> list[str]:
        return list(dict.fromkeys(layer.site for layer in self.layers))

    @property
    def importances(self) -> list[float]:
        return [value for layer in self.layers for value in layer.importance]

    def dist(self, site: str | None = None) -> float | None:
        """Mean over the layers, of one site or of all."""
        found = [x.dist for x in self.layers if site in (None, x.site) and x.dist is not None]
        return sum(found) / len(found) if found else None

    def harmless(self, tolerance: float) -> int:
        """How many heads can be masked, one at a time, at a cost of at most ``tolerance``."""
        return sum(value <= tolerance for value in self.importances)


def as_json(reports: Sequence[HeadReport], tolerance: float, **origin: Any) -> dict[str, Any]:
    """Everything measured; ``origin`` tells the data."""
    models = [
        {
            **asdict(report),
            "dist": report.dist(),
            "dist_by_site": {site: report.dist(site) for site in report.sites},
            "heads": len(report.importances),
            "harmless_heads": report.harmless(tolerance),
        }
        for report in reports
    ]
    return {**origin, "tolerance": tolerance, "models": models}


def from_json(found: dict[str, Any]) -> list[HeadReport]:
    """The reports that ``as_json`` wrote."""
    names = [entry.name for entry in fields(HeadReport)]
    return [
        HeadReport(
            **{
                **{name: model[name] for name in names},
                "layers": [LayerReport(**layer) for layer in model["layers"]],
            }
        )
        for model in found["models"]
    ]


def read_reports(path: Path) -> list[HeadReport]:
    """Those of a file that ``stochattn-heads --json`` wrote."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not what stochattn-heads --json writes") from None


def labels_of(reports: Sequence[HeadReport]) -> list[str]:
    """A, B: short names of the models; none is needed for a single one."""
    return ["AB"[i] for i in range(len(reports))] if len(reports) > 1 else [""]


def as_table(reports: Sequence[HeadReport], tolerance: float) -> str:
    """A line per layer (and model) with Dist and the importance of every head, then a summary."""
    labels = labels_of(reports)
    width = max(len(layer.importance) for report in reports for layer in report.layers)
    places = dict.fromkeys((x.site, x.layer) for report in reports for x in report.layers)
    head = "".join(f"{f'head {i}':>10}" for i in range(width))
    lines = [f"importance of a head: {reports[0].effect} when it is masked", ""]
    lines.append(f"{'site':<8}{'layer':>6}{'':>3}{'Dist':>10}{head}")
    for site, layer in places:
        for label, report in zip(labels, reports, strict=True):
            for found in report.layers:
                if (found.site, found.layer) == (site, layer):
                    values = "".join(f"{value:>+10.4f}" for value in found.importance)
                    lines.append(f"{site:<8}{layer:>6}{label:>3}{_number(found.dist):>10}{values}")
    lines.append("")
    for label, report in zip(labels, reports, strict=True):
        lines += _summary(f"{label} {report.checkpoint}".strip(), report, tolerance)
    return "\n".join(lines)


def _summary(title: str, report: HeadReport, tolerance: float) -> list[str]:
    count, harmless = len(report.importances), report.harmless(tolerance)
    by_site = ", ".join(f"{site} {_number(report.dist(site))}" for site in report.sites)
    layer = max(report.layers, key=lambda layer: max(layer.importance))
    most = max(layer.importance)
    where = f"{layer.site} layer {layer.layer} head {layer.importance.index(most)}"
    score = f"loss {report.score:.4f} {report.unit}"
    if report.signature is not None:
        score = f"BLEU {report.score:.2f} ({report.signature})"
    cost = f"at most {tolerance:g}" if tolerance else "nothing"
    return [
        f"{title}: {score}, {report.sentences} sentences",
        f"  Dist {_number(report.dist())} ({by_site})",
        f"  {harmless} of {count} heads ({harmless / count:.0%}) cost {cost} when masked alone",
        f"  most important: {where} ({most:+.4f})",
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
