"""Curves over the updates of a training run: every named loss, and quantities per layer.

Quantities per layer are the masked share of adversarial self-attention (Wu et al. 2022, Fig. 5),
the dropout probability of AttendOut (Wu et al. 2021, Fig. 3), and the squared MMD (maximum mean
discrepancy) between keys and queries of alignment attention. The site of a layer is encoder,
decoder or cross.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.errors import InputError
from .drawing import COLOURS, label_ends, line_style, panels
from .training_log import Series, TrainingLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAYER_TITLES = {
    "masked_share": "masked share",
    "drop": "dropout probability",
    "mmd": "squared MMD of keys and queries",  # in older logs
    "mmd_sigma1": "squared MMD of keys and queries",
}


def choose_curves(log: TrainingLog, names: Sequence[str] = ()) -> list[str]:
    """The given names, or every named loss if there are none. Raises if the log lacks a name."""
    for name in names:
        if name not in log.names():
            raise InputError(f"--names: the log has no {name} (it has: {', '.join(log.names())})")
    chosen = list(names) or log.losses()
    if not chosen:
        raise InputError(
            "the log has no training statistics: run fairseq-train with --log-format simple or json"
        )
    return chosen


def curves_figure(log: TrainingLog, names: Sequence[str], title: str) -> Figure:
    """A figure with one panel per name."""
    figure, axes = panels(len(names))
    for ax, name in zip(axes, names, strict=True):
        draw_curve(ax, log, name)
    figure.suptitle(title)
    return figure


def draw_curve(ax: Axes, log: TrainingLog, name: str) -> None:
    """Draw one quantity: a solid line for training, dashed lines with markers for validation."""
    labels = []
    trained = log.trained(name)
    if trained is not None:
        # A line through one or two points is hard to see.
        marker = {"marker": "."} if len(trained.updates) < 3 else {}
        ax.plot(*trained, color=COLOURS[0], linewidth=1.5, **marker)
        labels.append((_last(trained), "train", COLOURS[0]))
    for index, part in enumerate(log.validated, start=1):
        series = log.series(part, name)
        if series is not None:
            style = {**line_style(index, len(series.updates)), "linestyle": "--"}
            ax.plot(*series, **style)
            labels.append((_last(series), part, style["color"]))
    _finish(ax, name, labels)


def choose_layers(log: TrainingLog, names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The (quantity, site) pairs that were logged per layer, limited to ``names`` if given."""
    found = log.layers()
    known = sorted({name for name, _ in found})
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "nothing"
            raise InputError(f"--names: the log has no {name} per layer (it has: {listed})")
    if not found:
        raise InputError(
            "the log has no quantities per layer: they are logged by asa, by attendout, and by "
            "alignment with --alignment-log-mmd-layers"
        )
    return [key for key in found if not names or key[0] in names]


def layers_figure(log: TrainingLog, chosen: Sequence[tuple[str, str]], title: str) -> Figure:
    """A figure with one panel per (quantity, site)."""
    figure, axes = panels(len(chosen), (4.4, 3.2))
    for ax, (name, site) in zip(axes, chosen, strict=True):
        draw_layers(ax, log, name, site)
    figure.suptitle(title)
    return figure


def draw_layers(ax: Axes, log: TrainingLog, name: str, site: str) -> None:
    """Draw one quantity for one site, with one line per layer."""
    labels = []
    for layer in log.layers()[name, site]:
        key = f"{name}_{site}_{layer}"
        candidates = [log.trained(key), *(log.series(part, key) for part in log.validated)]
        series = next(filter(None, candidates))
        style = line_style(layer, len(series.updates))
        ax.plot(*series, **style)
        labels.append((_last(series), f"layer {layer}", style["color"]))
    _finish(ax, f"{LAYER_TITLES.get(name, name)}, {site} attention", labels)


LATE = 0.25  # the last part of a run, over which ``late_means`` averages


def late_means(log: TrainingLog, name: str, site: str) -> dict[int, float]:
    """The mean of a quantity of each layer over the last quarter of the logged updates."""
    means = {}
    for layer in log.layers().get((name, site), []):
        series = log.trained(f"{name}_{site}_{layer}")
        values = [] if series is None else [y for y in series.values if math.isfinite(y)]
        late = values[-math.ceil(LATE * len(values)) :]
        if late:
            means[layer] = sum(late) / len(late)
    return means


def shares_figure(
    logs: Mapping[str, TrainingLog], name: str = "masked_share", site: str = "encoder"
) -> Figure:
    """A figure with one line per run: a quantity over the layers (Wu et al. 2022, Fig. 5b)."""
    figure, (ax,) = panels(1, (4.8, 3.4))
    labels = []
    for index, (run, log) in enumerate(logs.items()):
        means = late_means(log, name, site)
        if not means:
            raise InputError(f"the log {run} has no {name} per layer of {site} attention")
        style = line_style(index, len(means))
        ax.plot(list(means), list(means.values()), **{**style, "marker": "o"})
        labels.append((means[max(means)], run, style["color"]))
    _finish(ax, f"{LAYER_TITLES.get(name, name)}, {site} attention", labels)
    ax.set_xlabel("layer")
    return figure


def _last(series: Series) -> float:
    """The last finite value of a series, or 0 if it has none."""
    return next((y for y in reversed(series.values) if math.isfinite(y)), 0.0)


def _finish(ax: Axes, title: str, labels: Sequence[tuple[float, str, str]]) -> None:
    """Add the title, the x axis, and the labels (y, text, colour) at the ends of the lines."""
    ax.set_title(title)
    ax.set_xlabel("updates")
    ax.xaxis.get_major_locator().set_params(nbins=5, integer=True)
    label_ends(ax, labels)
