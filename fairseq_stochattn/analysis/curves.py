"""A training over its updates: every named loss, and what is told of every layer.

The latter is the masked share of adversarial self-attention (Wu et al. 2022, Fig. 5), the dropout
probability of AttendOut (Wu et al. 2021, Fig. 3), or the MMD of alignment attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairseq_stochattn.analysis.drawing import COLOURS, label_ends, look, panels
from fairseq_stochattn.analysis.training_log import Series, TrainingLog
from fairseq_stochattn.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAYER_TITLES = {
    "masked_share": "masked share",
    "drop": "dropout probability",
    "mmd": "squared MMD of keys and queries",
}


def choose_curves(log: TrainingLog, names: Sequence[str] = ()) -> list[str]:
    """The named series, or every named loss."""
    for name in names:
        if name not in log.names():
            raise UsageError(f"--names: the log has no {name} (it has: {', '.join(log.names())})")
    found = list(names) or log.losses()
    if not found:
        raise UsageError(
            "no figures of a training in the log: fairseq-train writes them with --log-format "
            "simple or json"
        )
    return found


def curves_figure(log: TrainingLog, names: Sequence[str], title: str) -> Figure:
    figure, axes = panels(len(names))
    for ax, name in zip(axes, names, strict=True):
        draw_curve(ax, log, name)
    figure.suptitle(title)
    return figure


def draw_curve(ax: Axes, log: TrainingLog, name: str) -> None:
    """One quantity: in training a plain line, in validation dashed with markers."""
    labels = []
    trained = log.trained(name)
    if trained is not None:
        few = {"marker": "."} if len(trained.updates) < 3 else {}
        ax.plot(*trained, color=COLOURS[0], linewidth=1.5, **few)
        labels.append((_last(trained), "train", COLOURS[0]))
    for index, part in enumerate(log.validated, start=1):
        series = log.series(part, name)
        if series is not None:
            style = {**look(index, len(series.updates)), "linestyle": "--"}
            ax.plot(*series, **style)
            labels.append((_last(series), part, style["color"]))
    _finish(ax, name, labels)


def choose_layers(log: TrainingLog, names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(quantity, site) of everything that is told for every layer."""
    found = log.layers()
    known = sorted({name for name, _ in found})
    for name in names:
        if name not in known:
            told = ", ".join(known) or "nothing"
            raise UsageError(f"--names: no {name} of layers in the log (it has: {told})")
    if not found:
        raise UsageError(
            "the log tells nothing of single layers: methods such as asa and attendout do, and "
            "alignment with --alignment-log-mmd-layers"
        )
    return [key for key in found if not names or key[0] in names]


def layers_figure(log: TrainingLog, chosen: Sequence[tuple[str, str]], title: str) -> Figure:
    figure, axes = panels(len(chosen), (4.4, 3.2))
    for ax, (name, site) in zip(axes, chosen, strict=True):
        draw_layers(ax, log, name, site)
    figure.suptitle(title)
    return figure


def draw_layers(ax: Axes, log: TrainingLog, name: str, site: str) -> None:
    """One quantity of one site, a line for every layer."""
    labels = []
    for layer in log.layers()[name, site]:
        key = f"{name}_{site}_{layer}"
        found = [log.trained(key), *(log.series(part, key) for part in log.validated)]
        series = next(filter(None, found))
        style = look(layer, len(series.updates))
        ax.plot(*series, **style)
        labels.append((_last(series), f"layer {layer}", style["color"]))
    _finish(ax, f"{LAYER_TITLES.get(name, name)}, {site} attention", labels)


def _last(series: Series) -> float:
    return next((y for y in reversed(series.values) if math.isfinite(y)), 0.0)


def _finish(ax: Axes, title: str, labels: Sequence[tuple[float, str, str]]) -> None:
    ax.set_title(title)
    ax.set_xlabel("updates")
    ax.xaxis.get_major_locator().set_params(nbins=5, integer=True)
    label_ends(ax, labels)
