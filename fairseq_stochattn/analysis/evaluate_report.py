"""What stochattn-evaluate found: as JSON, and as a table with a column a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_stochattn.analysis.answering import Answered
from fairseq_stochattn.analysis.translations import RESAMPLES, Difference
from fairseq_stochattn.analysis.uncertainty import (
    auroc,
    by_example,
    cumulative,
    measures,
    reliability,
    risk_coverage,
    thinned,
)
from fairseq_stochattn.errors import UsageError

_ROWS = {
    "bleu": ("BLEU", "{:.2f}"),
    "accuracy": ("accuracy (%)", "{:.2f}"),
    "nll": ("nll (bits)", "{:.4f}"),
    "perplexity": ("perplexity", "{:.2f}"),
    "brier": ("Brier score", "{:.4f}"),
    "ece": ("ECE", "{:.4f}"),
    "oe": ("OE", "{:.4f}"),
    "pavpu": ("PAvPU", "{:.4f}"),
    "aurc": ("AURC", "{:.4f}"),
    "predictive_entropy": ("predictive entropy (bits)", "{:.4f}"),
    "expected_entropy": ("expected entropy (bits)", "{:.4f}"),
    "mutual_information": ("mutual information (bits)", "{:.4g}"),
}
# What tells other data, and which answer it is.
_MEASURES = {"entropy": "predictive_entropy", "mutual_information": "mutual_information"}


@dataclass(frozen=True)
class CheckpointReport:
    """One checkpoint; ``samples`` is 0 where its attention was not sampled."""

    path: str
    name: str
    arch: str
    samples: int
    examples: int
    predictions: int
    metrics: dict[str, float]
    signature: str | None
    reliability: list[dict[str, Any]] | None
    risk_coverage: dict[str, list[float]] | None
    least_certain: list[dict[str, Any]]
    out_of_domain: dict[str, Any] | None


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the checkpoints apart: from the ends of their paths."""
    parts = [path.with_suffix("").parts for path in paths]
    if len(set(parts)) < len(parts):
        raise UsageError("--path: a checkpoint is given twice")
    # checkpoint_best.pt is the name of many: where all are called so, their folders tell.
    while all(len(x) > 1 for x in parts) and (
        len({x[-1] for x in parts}) == 1 and (len(parts) > 1 or "checkpoint" in parts[0][-1])
    ):
        parts = [x[:-1] for x in parts]
    length = 1
    while len({x[-length:] for x in parts}) < len(parts):
        length += 1
    return ["/".join(x[-length:]) for x in parts]


def calibration(answered: Answered, tokens: bool) -> dict[str, Any]:
    """The metrics and curves of a report."""
    answers = answered.answers
    found: dict[str, Any] = {
        "metrics": measures(answers, tokens),
        "reliability": None,
        "risk_coverage": None,
    }
    if answers.target is not None:
        bins = reliability(answers.confidence, answers.correct)
        curve = risk_coverage(answers.confidence, answers.correct)
        chosen = thinned(len(curve.risk))
        found["reliability"] = [asdict(bin) for bin in bins]
        found["risk_coverage"] = {
            "coverage": curve.coverage[chosen].tolist(),
            "risk": curve.risk[chosen].tolist(),
        }
    return found


def novelty(data: str, subset: str, inside: Answered, outside: Answered) -> dict[str, Any]:
    """How well uncertainty tells examples of another data set; tokens count as their example."""
    values = {
        name: [by_example(getattr(x.answers, field), x.example) for x in (inside, outside)]
        for name, field in _MEASURES.items()
    }
    names = ("entropy", "in_domain", "out_of_domain")
    curves = (curve.tolist() for curve in cumulative(*values["entropy"]))
    return {
        "data": data,
        "split": subset,
        "examples": len(values["entropy"][1]),
        "auroc": {name: auroc(*pair) for name, pair in values.items()},
        "entropy_cdf": dict(zip(names, curves, strict=True)),
    }


def as_json(
    reports: Sequence[CheckpointReport], differences: Sequence[Difference], **origin: Any
) -> dict[str, Any]:
    """Everything; what is not a finite number is null."""
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
        {k: v for k, v in asdict(report).items() if not (k == "signature" and v is None)}
        for report in reports
    ]
    return _finite({**origin, "checkpoints": checkpoints, "comparisons": comparisons})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_table(found: dict[str, Any]) -> str:
    """The JSON for people."""
    models = found["checkpoints"]
    title = f"{found['task']}: {found['split']} of {found['data']}, "
    title += f"{models[0]['examples']} examples, {models[0]['predictions']} predictions"
    width = max(12, *(len(model["name"]) + 2 for model in models))

    def row(label: str, form: str, values: Sequence[Any]) -> str:
        cells = ("–" if value is None else form.format(value) for value in values)
        return f"{label:<30}" + "".join(f"{cell:>{width}}" for cell in cells)

    lines = [title, "", row("", "{}", [model["name"] for model in models])]
    lines.append(row("samples of the attention", "{}", [model["samples"] for model in models]))
    for name, (label, form) in _ROWS.items():
        values = [model["metrics"].get(name) for model in models]
        if any(value is not None for value in values):
            lines.append(row(label, form, values))
    outside = models[0]["out_of_domain"]
    if outside is not None:
        lines += ["", f"against {outside['examples']} of {outside['split']} of {outside['data']}:"]
        for name in _MEASURES:
            values = [model["out_of_domain"]["auroc"][name] for model in models]
            lines.append(row(f"AUROC of {name.replace('_', ' ')}", "{:.4f}", values))
    for signature in dict.fromkeys(model.get("signature") for model in models):
        lines += ["", f"BLEU: {signature}"] if signature else []
    for other in found["comparisons"]:
        lines.append(
            f"{other['of']} − {other['with']}: {other['bleu_difference']:+.2f} BLEU, "
            f"p = {other['p_value']:.4f} ({other['method']})"
        )
    return "\n".join(lines)
