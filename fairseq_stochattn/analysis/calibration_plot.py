"""How far the probabilities of a model can be trusted, drawn from stochattn-evaluate's file.

Reliability diagrams, risk over coverage, and the entropy of in-domain and other examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairseq_stochattn.analysis.drawing import COLOURS, SQUARE, label_ends, look, panels
from fairseq_stochattn.analysis.evaluation_file import name_of, with_part
from fairseq_stochattn.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability_figure(evaluation: dict[str, Any]) -> Figure:
    entries = _entries(evaluation, "reliability")
    figure, axes = panels(len(entries), SQUARE)
    for ax, entry in zip(axes, entries, strict=True):
        draw_reliability(ax, entry)
    figure.suptitle(_source(evaluation))
    return figure


def risk_coverage_figure(evaluation: dict[str, Any]) -> Figure:
    entries = _entries(evaluation, "risk_coverage")
    figure, (ax,) = panels(1, (5.2, 3.7))
    draw_risk_coverage(ax, entries)
    figure.suptitle(_source(evaluation))
    return figure


def out_of_domain_figure(evaluation: dict[str, Any]) -> Figure:
    entries = _entries(evaluation, "out_of_domain")
    figure, axes = panels(len(entries), SQUARE)
    for ax, entry in zip(axes, entries, strict=True):
        draw_out_of_domain(ax, entry)
    figure.suptitle(_source(evaluation))
    return figure


def draw_reliability(ax: Axes, entry: dict[str, Any]) -> None:
    """Accuracy in bins of confidence; hatched is what is missing to confidence, or too much."""
    bins = [x for x in entry["reliability"] if x["count"]]
    left, width = [x["low"] for x in bins], [x["high"] - x["low"] for x in bins]
    right = [x["accuracy"] for x in bins]
    gap = [x["confidence"] - x["accuracy"] for x in bins]
    shape = {"align": "edge", "edgecolor": "black", "linewidth": 0.8}
    ax.bar(left, right, width, color=COLOURS[0], label="accuracy", **shape)
    ax.bar(
        *(left, gap, width),
        bottom=right,
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
    ax.set(xlim=(0, 1), ylim=(0, 1.08), xlabel="confidence (numbers: how many)", ylabel="accuracy")
    ax.legend(loc="upper left", fontsize=7)


def draw_risk_coverage(ax: Axes, entries: Sequence[dict[str, Any]]) -> None:
    """The share of errors among the most certain examples, over their share of all."""
    labels = []
    for index, entry in enumerate(entries):
        found = entry["risk_coverage"]
        style = look(index, len(found["risk"]))
        ax.plot(found["coverage"], found["risk"], **style)
        area = entry["metrics"].get("aurc")
        text = name_of(entry) + ("" if area is None else f"\nAURC {area:.3g}")
        labels.append((found["risk"][-1], text, style["color"]))
    ax.set(xlim=(0, 1), xlabel="coverage: share answered, most certain first")
    ax.set_ylabel("risk: share wrong of those")
    ax.set_ylim(bottom=0)
    label_ends(ax, labels, lines=2)


def draw_out_of_domain(ax: Axes, entry: dict[str, Any]) -> None:
    """How many examples have at most this entropy: in the domain, and outside of it."""
    found = entry["out_of_domain"]
    cdf = found["entropy_cdf"]
    for index, kind in enumerate(("in_domain", "out_of_domain")):
        style = look(index, len(cdf["entropy"]))
        text = kind.replace("_", "-")
        ax.step(cdf["entropy"], cdf[kind], where="post", label=text, **style)
    scores = [f"AUROC by {name.replace('_', ' ')} {x:.3g}" for name, x in found["auroc"].items()]
    ax.set_title("\n".join([name_of(entry), *scores]))
    ax.set(ylim=(0, 1.02), xlabel="predictive entropy (bits)", ylabel="share of examples below")
    ax.legend(loc="lower right", fontsize=7)


def _entries(evaluation: dict[str, Any], part: str) -> list[dict[str, Any]]:
    entries = with_part(evaluation, part)
    if not entries:
        raise UsageError(f"the evaluation has no {part.replace('_', ' ')}")
    return entries


def _source(evaluation: dict[str, Any]) -> str:
    return f"{evaluation.get('data', '')} ({evaluation.get('split', '')})"


def _short(count: int) -> str:
    return f"{count / 1000:.3g}k" if count >= 1000 else str(count)
