"""Formats Dist (``heads.py``) and importance of the heads of one or two models: table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .json_shape import ShapeError, integer, list_of, number, optional, read_shaped, table, text

DIVERSITY = ("dist_over_norm", "feature_cosine", "head_cosine")  # measures of a layer besides Dist


@dataclass(frozen=True)
class LayerReport:
    """The measurements of the heads in one attention module."""

    site: str
    layer: int
    name: str  # the module's name in the model
    dist: float | None  # None if the module has a single head
    importance: list[float]  # one per head
    # None also if the file was written before these measures existed.
    dist_over_norm: float | None = None
    feature_cosine: float | None = None
    head_cosine: float | None = None


@dataclass(frozen=True)
class HeadReport:
    """The measurements of all heads in one model."""

    checkpoint: str
    sentences: int
    metric: str  # "loss" or "bleu"
    unit: str
    score: float  # the metric with all heads
    signature: str | None  # sacrebleu's signature if the metric is bleu, else None
    layers: list[LayerReport]

    @property
    def effect(self) -> str:
        """A phrase for the importance of a head, with its unit."""
        return "drop of BLEU (points)" if self.metric == "bleu" else f"rise of loss ({self.unit})"

    @property
    def sites(self) -> list[str]:
        return list(dict.fromkeys(layer.site for layer in self.layers))

    @property
    def importances(self) -> list[float]:
        return [value for layer in self.layers for value in layer.importance]

    def dist(self, site: str | None = None) -> float | None:
        """Dist, averaged over the layers of one site or of all sites."""
        return self.mean("dist", site)

    def mean(self, measure: str, site: str | None = None) -> float | None:
        """A measure of the layers, averaged over the layers of one site or of all sites."""
        values = [getattr(x, measure) for x in self.layers if site in (None, x.site)]
        values = [value for value in values if value is not None]
        return sum(values) / len(values) if values else None

    def harmless(self, tolerance: float) -> int:
        """The number of heads whose importance is at most ``tolerance``."""
        return sum(value <= tolerance for value in self.importances)


def as_json(reports: Sequence[HeadReport], tolerance: float, **origin: Any) -> dict[str, Any]:
    """All measurements as a JSON object, together with ``origin``, such as the data."""
    models = [
        {
            **asdict(report),
            "dist": report.dist(),
            **{measure: report.mean(measure) for measure in DIVERSITY},
            "dist_by_site": {site: report.dist(site) for site in report.sites},
            "heads": len(report.importances),
            "harmless_heads": report.harmless(tolerance),
        }
        for report in reports
    ]
    return {**origin, "tolerance": tolerance, "models": models}


def from_json(content: dict[str, Any]) -> list[HeadReport]:
    """The reports from an object that ``as_json`` returned."""
    return [
        HeadReport(
            **{
                **{entry.name: model[entry.name] for entry in fields(HeadReport)},
                "layers": [
                    LayerReport(
                        **{x.name: layer[x.name] for x in fields(LayerReport) if x.name in layer}
                    )
                    for layer in model["layers"]
                ],
            }
        )
        for model in content["models"]
    ]


_LAYER = table(
    {
        "site": text,
        "layer": integer,
        "name": text,
        "dist": optional(number),
        "importance": list_of(number, least=1),
    },
    dict.fromkeys(DIVERSITY, optional(number)),
)
_MODEL = table(
    {
        "checkpoint": text,
        "sentences": integer,
        "metric": text,
        "unit": text,
        "score": number,
        "signature": optional(text),
        "layers": list_of(_LAYER, least=1),
    }
)


def _models(value: Any, place: str) -> None:
    """The list of models: one, or two that are compared."""
    list_of(_MODEL, least=1)(value, place)
    if len(value) > 2:
        raise ShapeError(f"it has {len(value)} models, expected one or two")


def read_reports(path: Path) -> list[HeadReport]:
    """The reports in a file that ``stochattn-heads --json`` wrote."""
    return from_json(read_shaped(path, table({"models": _models}), "stochattn-heads --json"))


def labels_of(reports: Sequence[HeadReport]) -> list[str]:
    """Short names for the models: A and B, or the empty string for a single model."""
    return ["AB"[i] for i in range(len(reports))] if len(reports) > 1 else [""]


def as_table(reports: Sequence[HeadReport], tolerance: float) -> str:
    """A table with one line per layer and model, followed by a summary of each model."""
    labels = labels_of(reports)
    width = max(len(layer.importance) for report in reports for layer in report.layers)
    places = dict.fromkeys((x.site, x.layer) for report in reports for x in report.layers)
    head = "".join(f"{f'head {i}':>10}" for i in range(width))
    lines = [f"importance of a head: {reports[0].effect} when it is masked", ""]
    measures = f"{'Dist':>10}{'Dist/norm':>10}{'cos(Z)':>10}{'cos(W)':>10}"
    lines.append(f"{'site':<8}{'layer':>6}{'':>3}{measures}{head}")
    for site, layer in places:
        for label, report in zip(labels, reports, strict=True):
            for entry in report.layers:
                if (entry.site, entry.layer) == (site, layer):
                    values = "".join(f"{value:>+10.4f}" for value in entry.importance)
                    found = [entry.dist, *(getattr(entry, name) for name in DIVERSITY)]
                    diversity = "".join(f"{_number(value):>10}" for value in found)
                    lines.append(f"{site:<8}{layer:>6}{label:>3}{diversity}{values}")
    lines.append("")
    for label, report in zip(labels, reports, strict=True):
        lines += _summary(f"{label} {report.checkpoint}".strip(), report, tolerance)
    return "\n".join(lines)


def _summary(title: str, report: HeadReport, tolerance: float) -> list[str]:
    """Score, Dist, the share of harmless heads and the most important head of one model."""
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
        f"  Dist/norm {_number(report.mean('dist_over_norm'))}, cosine of features "
        f"{_number(report.mean('feature_cosine'))}, cosine of parameters "
        f"{_number(report.mean('head_cosine'))}",
        f"  {harmless} of {count} heads ({harmless / count:.0%}) cost {cost} when masked alone",
        f"  most important: {where} ({most:+.4f})",
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
