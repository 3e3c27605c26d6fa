"""Sections of a run's page: how good and how calibrated it is, and what it is least certain of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq_stochattn.analysis import page
from fairseq_stochattn.analysis.calibration_plot import (
    draw_out_of_domain,
    draw_reliability,
    draw_risk_coverage,
)
from fairseq_stochattn.analysis.drawing import SQUARE
from fairseq_stochattn.analysis.evaluation_file import name_of, with_part
from fairseq_stochattn.analysis.svg import panel

# Name, which way is better, what it is.
METRICS = {
    "accuracy": ("accuracy (%)", "higher", "right answers"),
    "bleu": ("BLEU", "higher", "sacrebleu, of the whole set"),
    "perplexity": ("perplexity", "lower", "how many tokens the model hesitates between"),
    "nll": ("NLL (bits)", "lower", "−log₂ of the probability of the right answer"),
    "brier": ("Brier score", "lower", "squared distance of the probabilities from the answer"),
    "ece": ("ECE", "lower", "expected gap between confidence and accuracy"),
    "oe": ("OE", "lower", "the same, where it is too confident"),
    "pavpu": ("PAvPU", "higher", "share that is right and certain, or wrong and uncertain"),
    "aurc": ("AURC", "lower", "mean share wrong, whatever share is answered"),
    "predictive_entropy": ("predictive entropy (bits)", "", "all uncertainty"),
    "expected_entropy": ("expected entropy (bits)", "", "of it, what is in the data"),
    "mutual_information": ("mutual information (bits)", "", "of it, what is in the attention"),
}


def metrics(evaluation: dict[str, Any]) -> str:
    entries = evaluation["checkpoints"]
    known = dict.fromkeys(METRICS) | dict.fromkeys(x for e in entries for x in e["metrics"])
    rows = []
    for name in known:
        values = [entry["metrics"].get(name) for entry in entries]
        if any(value is not None for value in values):
            label, better, meaning = METRICS.get(name, (name.replace("_", " "), "", ""))
            below = f"{meaning}; {better} is better" if better else meaning
            rows.append([page.titled(label, below), *map(page.shown, values)])
    head = ["measure", *map(name_of, entries)]
    origin = f"{evaluation.get('split', '')} set of {evaluation.get('data', '')}"
    caption = f"{origin}, {evaluation.get('samples', 1)} samples of the attention"
    html = page.table(caption, head, rows, numeric=range(1, 1 + len(entries)))
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
    return html + page.gallery(_calibration(evaluation))


def _calibration(evaluation: dict[str, Any]) -> list[str]:
    pictures = [
        panel(
            f"reliability{number}",
            lambda ax, entry=entry: draw_reliability(ax, entry),
            caption="Reliability: where bars reach the diagonal, confidence can be trusted",
            described=f"Reliability diagram of {name_of(entry)}. " + _bins(entry["reliability"]),
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
                caption="Risk over coverage: the lower, the better it knows what it does not know",
                described="Share of wrong answers over the share answered, most certain first.",
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
                caption=f"Entropy here and on {other}: the further apart, the better",
                described=f"Share of examples below an entropy, two curves. AUROC: {scores}.",
                size=SQUARE,
            )
        )
    return pictures


def least_certain(entry: dict[str, Any]) -> str:
    rows = []
    for one in entry["least_certain"]:
        right = None if one.get("target") is None else one["prediction"] == one["target"]
        verdict = {None: "", True: "✓\N{NO-BREAK SPACE}right", False: "✗\N{NO-BREAK SPACE}wrong"}[
            right
        ]
        rows.append(
            (
                one["id"],
                page.shown(one["text"]),
                page.shown(one["prediction"]),
                page.shown(one.get("target")),
                verdict,
                "" if one.get("confidence") is None else page.bar(one["confidence"]),
                page.shown(one.get("entropy")),
                page.shown(one.get("mutual_information")),
            )
        )
    head = [
        "example",
        "text",
        "prediction",
        "target",
        "it is",
        "confidence",
        "entropy",
        "mutual information",
    ]
    return page.table(
        f"By {name_of(entry)}, least certain first", head, rows, numeric=(5, 6, 7), wide=True
    )


def _bins(bins: Sequence[dict[str, Any]]) -> str:
    return " ".join(
        f"Confidence {x['confidence']:.2f}: accuracy {x['accuracy']:.2f} of {x['count']}."
        for x in bins
        if x["count"]
    )
