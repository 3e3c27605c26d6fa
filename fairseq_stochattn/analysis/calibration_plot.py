"""Draws calibration and uncertainty from the file that stochattn-evaluate --json writes.

The figures are reliability diagrams, risk-coverage curves, and the distributions of the entropy for
in-domain and out-of-domain examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from .drawing import COLOURS, SQUARE, label_ends, line_style, panels
from .evaluation_file import name_of, with_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability_figure(evaluation: dict[str, Any]) -> Figure:
    """A figure with one reliability diagram per checkpoint."""
    entries = _entries(evaluation, "reliability")
    figure, axes = panels(len(entries), SQUARE)
    for ax, entry in zip(axes, entries, strict=True):
        draw_reliability(ax, entry)
    figure.suptitle(_source(evaluation))
    return figure


def risk_coverage_figure(evaluation: dict[str, Any]) -> Figure:
    """A figure with the risk-coverage curves of all checkpoints in one panel."""
    entries = _entries(evaluation, "risk_coverage")
    figure, (ax,) = panels(1, (5.2, 3.7))
    draw_risk_coverage(ax, entries)
    figure.suptitle(_source(evaluation))
    return figure


def out_of_domain_figure(evaluation: dict[str, Any]) -> Figure:
    """A figure with one panel per checkpoint: its entropies in domain and out of domain."""
    entries = _entries(evaluation, "out_of_domain")
    figure, axes = panels(len(entries), SQUARE)
    for ax, entry in zip(axes, entries, strict=True):
        draw_out_of_domain(ax, entry)
    figure.suptitle(_source(evaluation))
    return figure


def draw_reliability(ax: Axes, entry: dict[str, Any]) -> None:
    """Draw the accuracy in bins of confidence. The gap to the mean confidence is hatched."""
    bins = [x for x in entry["reliability"] if x["count"]]
    left, width = [x["low"] for x in bins], [x["high"] - x["low"] for x in bins]
    accuracy = [x["accuracy"] for x in bins]
    gap = [x["confidence"] - x["accuracy"] for x in bins]
    shape = {"align": "edge", "edgecolor": "black", "linewidth": 0.8}
    ax.bar(left, accuracy, width, color=COLOURS[0], label="accuracy", **shape)
    ax.bar(
        *(left, gap, width),
        bottom=accuracy,
        color="none",
        hatch="////",
        label="gap to confidence",
        **shape,
    )
    ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="calibrated")
    for x in bins:
        top = max(x["accuracy"], x["confidence"])
        place = ((x["low"] + x["high"]) / 2, top)
        ax.annotate(
            _short(x["count"]),
            place,
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6.5,
        )
    ece = entry["metrics"].get("ece")
    ax.set_title(name_of(entry) + ("" if ece is None else f", ECE {ece:.3g}"))
    ax.set(
        xlim=(0, 1), ylim=(0, 1.08), xlabel="confidence (numbers: predictions)", ylabel="accuracy"
    )
    ax.legend(loc="upper left", fontsize=7)


def draw_risk_coverage(ax: Axes, entries: Sequence[dict[str, Any]]) -> None:
    """Draw one risk-coverage curve per checkpoint.

    Coverage is the share of predictions that are answered, most confident first. Risk is the share
    of errors among them.
    """
    labels = []
    for index, entry in enumerate(entries):
        curve = entry["risk_coverage"]
        style = line_style(index, len(curve["risk"]))
        ax.plot(curve["coverage"], curve["risk"], **style)
        area = entry["metrics"].get("aurc")
        text = name_of(entry) + ("" if area is None else f"\nAURC {area:.3g}")
        labels.append((curve["risk"][-1], text, style["color"]))
    ax.set(xlim=(0, 1), xlabel="coverage: share answered, most certain first")
    ax.set_ylabel("risk: share of errors among them")
    ax.set_ylim(bottom=0)
    label_ends(ax, labels, lines=2)


def draw_out_of_domain(ax: Axes, entry: dict[str, Any]) -> None:
    """Draw the cumulative distributions of the entropy in domain and out of domain."""
    measured = entry["out_of_domain"]
    cdf = measured["entropy_cdf"]
    for index, kind in enumerate(("in_domain", "out_of_domain")):
        style = line_style(index, len(cdf["entropy"]))
        text = kind.replace("_", "-")
        ax.step(cdf["entropy"], cdf[kind], where="post", label=text, **style)
    scores = [f"AUROC by {name.replace('_', ' ')} {x:.3g}" for name, x in measured["auroc"].items()]
    ax.set_title("\n".join([name_of(entry), *scores]))
    ax.set(ylim=(0, 1.02), xlabel="predictive entropy (bits)", ylabel="share of examples below")
    ax.legend(loc="lower right", fontsize=7)


def _entries(evaluation: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """The checkpoints whose evaluation has this part. Raises ``InputError`` if there are none."""
    entries = with_part(evaluation, part)
    if not entries:
        raise InputError(f"the evaluation has no {part.replace('_', ' ')} for any checkpoint")
    return entries


def _source(evaluation: dict[str, Any]) -> str:
    return f"{evaluation.get('data', '')} ({evaluation.get('split', '')})"


def _short(count: int) -> str:
    return f"{count / 1000:.3g}k" if count >= 1000 else str(count)
