"""Sections of the HTML page about a run: metrics, calibration, and the least certain examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import page
from .calibration_plot import draw_out_of_domain, draw_reliability, draw_risk_coverage
from .drawing import SQUARE
from .evaluation_file import name_of, with_part
from .metric_labels import METER_LABELS, METRIC_LABELS, label_of
from .svg import panel

# The table begins with these metrics. The others follow in the order of ``METRIC_LABELS``.
_FIRST_METRICS = ("accuracy", "bleu", "perplexity", "nll")


def metrics(evaluation: dict[str, Any]) -> str:
    """The table of all metrics, comparisons between checkpoints, and figures of calibration."""
    entries = evaluation["checkpoints"]
    origin = f"{evaluation.get('split', '')} set of {evaluation.get('data', '')}"
    caption = f"{origin}, {evaluation.get('samples', 1)} samples of the attention"
    html = _table(caption, "measure", entries, "metrics", (*_FIRST_METRICS, *METRIC_LABELS))
    for entry in entries:
        if entry.get("signature"):
            html += page.paragraph(f"BLEU of {name_of(entry)}: {entry['signature']}")
    if evaluation.get("comparisons"):
        rows = [
            (f"{x['of']} − {x['with']}", f"{x['bleu_difference']:+.2f}", page.shown(x["p_value"]))
            for x in evaluation["comparisons"]
        ]
        method = evaluation["comparisons"][0].get("method", "")
        html += page.table(f"Differences, {method}", ["", "BLEU", "p"], rows, numeric=(1, 2))
    if with_part(evaluation, "meters"):
        caption = "Meters: does the attention method do what it exists for?"
        html += _table(caption, "meter", entries, "meters", tuple(METER_LABELS))
    return html + page.gallery(_calibration(evaluation))


def _table(
    caption: str, column: str, entries: Sequence[dict[str, Any]], part: str, first: Sequence[str]
) -> str:
    """A table of ``entry[part]`` with one column per checkpoint.

    The rows named in ``first`` come first.
    """
    parts = [entry.get(part) or {} for entry in entries]
    rows = []
    for name in dict.fromkeys((*first, *(name for numbers in parts for name in numbers))):
        values = [numbers.get(name) for numbers in parts]
        if any(value is not None for value in values):
            label = label_of(name)
            better = f"; {label.better} is better" if label.better else ""
            title = page.titled(label.label, f"{label.meaning}{better}")
            rows.append([title, *map(page.shown, values)])
    head = [column, *map(name_of, entries)]
    return page.table(caption, head, rows, numeric=range(1, 1 + len(entries)))


def _calibration(evaluation: dict[str, Any]) -> list[str]:
    """The figures of reliability, risk-coverage and entropy that the evaluation has data for."""
    pictures = [
        panel(
            f"reliability{number}",
            lambda ax, entry=entry: draw_reliability(ax, entry),
            caption="Reliability: the closer the bars to the diagonal, the better calibrated",
            description=f"Reliability diagram of {name_of(entry)}. "
            + _bins_in_words(entry["reliability"]),
            size=SQUARE,
        )
        for number, entry in enumerate(with_part(evaluation, "reliability"))
    ]
    answered = with_part(evaluation, "risk_coverage")
    if answered:
        pictures.append(
            panel(
                "risk",
                lambda ax: draw_risk_coverage(ax, answered),
                caption="Risk over coverage: the lower the curve, the better",
                description="Share of wrong answers over the share answered, most certain first.",
                size=SQUARE,
            )
        )
    for number, entry in enumerate(with_part(evaluation, "out_of_domain")):
        other = entry["out_of_domain"].get("data", "other data")
        scores = ", ".join(f"{k} {v:.3g}" for k, v in entry["out_of_domain"]["auroc"].items())
        pictures.append(
            panel(
                f"domain{number}",
                lambda ax, entry=entry: draw_out_of_domain(ax, entry),
                caption=f"Entropy on this data and on {other}: the further apart, the better",
                description=f"Share of examples below an entropy, two curves. AUROC: {scores}.",
                size=SQUARE,
            )
        )
    return pictures


def least_certain(entry: dict[str, Any]) -> str:
    """A table of the predictions with the lowest confidence of one checkpoint."""
    rows = []
    for example in entry["least_certain"]:
        right = (
            None if example.get("target") is None else example["prediction"] == example["target"]
        )
        verdict = {None: "", True: "✓\N{NO-BREAK SPACE}right", False: "✗\N{NO-BREAK SPACE}wrong"}[
            right
        ]
        rows.append(
            (
                example["id"],
                page.marked_words(page.shown(example["text"]), marks_of(example)),
                page.shown(example["prediction"]),
                page.shown(example.get("target")),
                verdict,
                "" if example.get("confidence") is None else page.bar(example["confidence"]),
                page.shown(example.get("entropy")),
                page.shown(example.get("mutual_information")),
            )
        )
    head = [
        "example",
        "text",
        "prediction",
        "target",
        "result",
        "confidence",
        "entropy",
        "mutual information",
    ]
    caption = f"By {name_of(entry)}, least certain first"
    if any(example.get("words") for example in entry["least_certain"]):
        caption += "; marked below a text: words whose attention weight varies most over samples"
    return page.table(caption, head, rows, numeric=(5, 6, 7), wide=True)


def marks_of(example: dict[str, Any]) -> list[tuple[str, bool]]:
    """The words that a prediction attends to, and whether the weight of each varies much."""
    return [(str(word["word"]), bool(word["varies"])) for word in example.get("words") or []]


def _bins_in_words(bins: Sequence[dict[str, Any]]) -> str:
    """Confidence, accuracy and size of every bin that is not empty, for screen readers."""
    return " ".join(
        f"Confidence {x['confidence']:.2f}: accuracy {x['accuracy']:.2f} of {x['count']}."
        for x in bins
        if x["count"]
    )
