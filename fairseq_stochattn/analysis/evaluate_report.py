"""Formats the results of stochattn-evaluate as JSON and as a table with a column per checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..tasks.labels import Tagging
from ..tasks.questions import LabelPredictions, Question
from ..tasks.span_labels import SpanPositions
from ..uncertainty.measures import (
    Answers,
    auroc,
    by_example,
    cumulative,
    measures,
    reliability,
    risk_coverage,
    thinned,
)
from .answering import Answered
from .metric_labels import METER_LABELS, METRIC_LABELS
from .translations import RESAMPLES, Difference, Translation

# Measures by which out-of-domain examples are detected: name in the report → uncertainty (N,).
_OUT_OF_DOMAIN_MEASURES: dict[str, Callable[[Answers], np.ndarray]] = {
    "entropy": lambda answers: answers.predictive_entropy,
    "mutual_information": lambda answers: answers.mutual_information,
    "max_probability": lambda answers: 1 - answers.confidence,
}


@dataclass(frozen=True)
class CheckpointReport:
    """The results of one checkpoint or of one ensemble."""

    path: str  # the paths of an ensemble are joined by colons
    name: str
    arch: str
    members: int  # number of checkpoints: 1 if it is not an ensemble
    samples: int  # samples of each member's attention; 0: the mean attention
    examples: int
    predictions: int
    metrics: dict[str, float]
    reliability: list[dict[str, Any]] | None
    risk_coverage: dict[str, list[float]] | None
    least_certain: list[dict[str, Any]]
    out_of_domain: dict[str, Any] | None
    meters: dict[str, float] = field(default_factory=dict)  # whether the method acts, by meter
    # The entries from here on are None, and missing in the file, where they do not apply.
    signature: str | None = None  # sacrebleu's, of BLEU
    chrf_signature: str | None = None
    bleu_statistics: list[list[int]] | None = None  # counts of BLEU, one row per sentence
    per_example: dict[str, list[Any]] | None = None


LABEL_WIDTH = 38  # of the first column of the table
_OPTIONAL = ("signature", "chrf_signature", "bleu_statistics", "per_example")


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names for the checkpoints, all different, made from the ends of their paths."""
    parts = [path.with_suffix("").parts for path in paths]
    if len(set(parts)) < len(parts):
        raise InputError("--path: a checkpoint is given twice")
    # Checkpoints of different runs often have the same file name, such as checkpoint_best.pt. If
    # all file names are equal, the names of the folders are used instead.
    while all(len(x) > 1 for x in parts) and (
        len({x[-1] for x in parts}) == 1 and (len(parts) > 1 or "checkpoint" in parts[0][-1])
    ):
        parts = [x[:-1] for x in parts]
    length = 1
    while len({x[-length:] for x in parts}) < len(parts):
        length += 1
    return ["/".join(x[-length:]) for x in parts]


def calibration(question: Question, answered: Answered) -> dict[str, Any]:
    """The metrics, reliability bins and risk-coverage curve for a report."""
    answers = answered.answers
    result: dict[str, Any] = {
        "metrics": {
            **measures(answers, tokens=question.classes_are_tokens),
            **task_metrics(question, answered),
        },
        "reliability": None,
        "risk_coverage": None,
    }
    if answers.target is not None:
        bins = reliability(answers.confidence, answers.correct)
        curve = risk_coverage(answers.confidence, answers.correct)
        chosen = thinned(len(curve.risk))
        result["reliability"] = [asdict(bin) for bin in bins]
        result["risk_coverage"] = {
            "coverage": curve.coverage[chosen].tolist(),
            "risk": curve.risk[chosen].tolist(),
        }
    return result


def task_metrics(question: Question, answered: Answered) -> dict[str, float]:
    """The metrics of GLUE, entities and spans besides accuracy, in percent; empty for tokens."""
    answers = answered.answers
    if answers.target is None or not isinstance(question, LabelPredictions):
        return {}
    if isinstance(question.labels, SpanPositions):
        # The start and the end of a window are adjacent.
        spans = (x.reshape(-1, 2).tolist() for x in (answers.target, answers.prediction))
        return {name: 100 * value for name, value in question.labels.metrics(*spans).items()}
    if question.labels.several_correct:
        return {}
    gold, predicted = (
        [question.class_name(int(number)) for number in numbers]
        for numbers in (answers.target, answers.prediction)
    )
    if isinstance(question.labels, Tagging):
        # The predictions for a sentence are adjacent.
        starts = np.flatnonzero(answered.place == 0)[1:]
        gold, predicted = (
            [part.tolist() for part in np.split(np.array(tags), starts)]
            for tags in (gold, predicted)
        )
    found = question.labels.metrics(gold, predicted)
    return {name: 100 * value for name, value in found.items() if name != "accuracy"}


def set_metrics(
    question: Question, dataset: Any, indices: np.ndarray, answered: Answered
) -> dict[str, float]:
    """The metrics of a set whose examples may have several correct answers, in percent.

    ``accuracy`` takes the place of the share of predictions that are the most frequent answer,
    which becomes ``accuracy_most_frequent``.
    """
    if answered.answers.target is None or not isinstance(question, LabelPredictions):
        return {}
    answers = answered.answers
    found = question.labels.metrics_of_set(dataset, indices, answered.example, answers.prediction)
    if not found:
        return {}
    most_frequent = {"accuracy_most_frequent": 100 * float(answers.correct.mean())}
    return {name: 100 * value for name, value in found.items()} | most_frequent


def per_example(
    answered: Answered, translations: Sequence[Translation]
) -> dict[str, list[int] | list[float] | list[str]]:
    """Sums over the predictions for each example, in the order of their ids, and translations.

    Two evaluations of the same data can be compared by a paired test of these numbers.
    """
    ids, place, counts = np.unique(answered.example, return_inverse=True, return_counts=True)
    answers = answered.answers

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(place, weights=values)

    found = {"id": ids.tolist(), "predictions": counts.tolist()}
    if answers.target is not None:
        found["correct"] = sums(answers.correct).astype(int).tolist()
        found["bits"] = sums(answers.target_bits).tolist()
    found["entropy"] = sums(answers.predictive_entropy).tolist()
    found["mutual_information"] = sums(answers.mutual_information).tolist()
    if translations:
        found["hypothesis"] = [x.hypothesis for x in translations]
        found["reference"] = [x.reference for x in translations]
    return found


def novelty(
    question: Question, data: str, subset: str, inside: Answered, outside: Answered
) -> dict[str, Any]:
    """How a model does on another data set (``outside``) than this one (``inside``).

    The result has the AUROC of every measure as a detector of the other set, and the entropy
    distributions of both sets. If the other set has labels, it also has the same metrics and
    reliability bins as this one. The uncertainty of an example is the mean over its predictions.
    ``data`` and ``subset`` name the other data set.
    """
    values = {
        name: [by_example(measure(x.answers), x.example) for x in (inside, outside)]
        for name, measure in _OUT_OF_DOMAIN_MEASURES.items()
    }
    names = ("entropy", "in_domain", "out_of_domain")
    curves = (curve.tolist() for curve in cumulative(*values["entropy"]))
    return {
        "data": data,
        "split": subset,
        "examples": len(values["entropy"][1]),
        "auroc": {name: auroc(*pair) for name, pair in values.items()},
        "entropy_cdf": dict(zip(names, curves, strict=True)),
        **({} if outside.answers.target is None else _measured(question, outside)),
    }


def _measured(question: Question, outside: Answered) -> dict[str, Any]:
    """The metrics and reliability bins of a set with labels."""
    found = calibration(question, outside)
    return {name: found[name] for name in ("metrics", "reliability")}


def as_json(
    reports: Sequence[CheckpointReport], differences: Sequence[Difference], **origin: Any
) -> dict[str, Any]:
    """All results and ``origin`` as a JSON object, with null for numbers that are not finite."""
    comparisons = [
        {
            "of": report.name,
            "with": reports[0].name,
            "bleu_difference": difference.bleu,
            "p_value": difference.p_value,
            "method": f"paired bootstrap, {RESAMPLES} resamples",
        }
        for report, difference in zip(reports[1:], differences, strict=False)
    ]
    checkpoints = [
        {k: v for k, v in asdict(report).items() if not (k in _OPTIONAL and v is None)}
        for report in reports
    ]
    return _finite({**origin, "checkpoints": checkpoints, "comparisons": comparisons})


def _finite(value: Any) -> Any:
    """A JSON value in which None replaces NaN and infinities."""
    if isinstance(value, dict):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_table(found: dict[str, Any]) -> str:
    """The result of ``as_json`` as a table for the terminal."""
    models = found["checkpoints"]
    title = f"{found['task']}: {found['split']} of {found['data']}, "
    title += f"{models[0]['examples']} examples, {models[0]['predictions']} predictions"
    if found.get("image_noise"):
        title += f", noise of standard deviation {found['image_noise']:g} in the images"
    width = max(12, *(len(model["name"]) + 2 for model in models))

    def row(label: str, number_format: str, values: Sequence[Any]) -> str:
        cells = ("–" if value is None else number_format.format(value) for value in values)
        return f"{label:<{LABEL_WIDTH}}" + "".join(f"{cell:>{width}}" for cell in cells)

    lines = [title, "", row("", "{}", [model["name"] for model in models])]
    if any(model.get("members", 1) > 1 for model in models):
        lines.append(row("members of the ensemble", "{}", [model["members"] for model in models]))
    lines.append(row("samples of the attention", "{}", [model["samples"] for model in models]))
    for name, metric in METRIC_LABELS.items():
        values = [model["metrics"].get(name) for model in models]
        if any(value is not None for value in values):
            lines.append(row(metric.label, metric.format, values))
    meters = {name: [(x.get("meters") or {}).get(name) for x in models] for name in METER_LABELS}
    meters = {name: values for name, values in meters.items() if any(x is not None for x in values)}
    lines += ["", "meters of the attention:"] if meters else []
    lines += [row(METER_LABELS[x].label, METER_LABELS[x].format, y) for x, y in meters.items()]
    outside = models[0]["out_of_domain"]
    if outside is not None:
        source = f"{outside['examples']} examples of {outside['data']} ({outside['split']})"
        lines += ["", f"out-of-domain detection, against {source}:"]
        for name in _OUT_OF_DOMAIN_MEASURES:
            values = [model["out_of_domain"]["auroc"][name] for model in models]
            lines.append(row(f"AUROC of {name.replace('_', ' ')}", "{:.4f}", values))
        measured = [model["out_of_domain"].get("metrics") or {} for model in models]
        lines += ["", "out of domain:"] if any(measured) else []
        for name, metric in METRIC_LABELS.items():
            values = [metrics.get(name) for metrics in measured]
            if any(value is not None for value in values):
                lines.append(row(metric.label, metric.format, values))
    lines += [""] if any(model.get("signature") for model in models) else []
    for label, key in (("BLEU", "signature"), ("chrF", "chrf_signature")):
        signatures = dict.fromkeys(model[key] for model in models if model.get(key))
        lines += [f"{label}: {signature}" for signature in signatures]
    for other in found["comparisons"]:
        lines.append(
            f"{other['of']} − {other['with']}: {other['bleu_difference']:+.2f} BLEU, "
            f"p = {other['p_value']:.4f} ({other['method']})"
        )
    return "\n".join(lines)
