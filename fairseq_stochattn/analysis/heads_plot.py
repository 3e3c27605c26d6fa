"""Draws the importance of heads: a histogram (An et al. 2020, Fig. 2) and layer × head maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .drawing import save
from .heads_report import HeadReport, LayerReport, labels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_BINS = 20
_FILLS = ({"color": "0.35"}, {"color": "0.85", "hatch": "///"})  # distinguishable without colour
_HEAD_WIDTH = 0.5  # inches per head in a map, wide enough to print a number


def draw(reports: Sequence[HeadReport], path: Path) -> None:
    """Save the figure for one or two models."""
    save(heads_figure(reports), path)


def heads_figure(reports: Sequence[HeadReport]) -> Figure:
    """A figure with a histogram of all heads, and below it one map per model (row) and site.

    A map has layers × heads. The site is encoder, decoder or cross.
    """
    from matplotlib.figure import Figure

    labels = labels_of(reports)
    sites = list(dict.fromkeys(site for report in reports for site in report.sites))
    maps = [[_layers_of(report, site) for site in sites] for report in reports]
    widths = [max(len(x.importance) for row in maps for x in row[i]) for i in range(len(sites))]
    heights = [max(max(map(len, row)), 3) for row in maps]
    size = (
        max(7.0, _HEAD_WIDTH * sum(widths) + 1.1 * len(sites) + 1.2),
        3.2 + sum(0.32 * height + 1.1 for height in heights),
    )
    figure = Figure(figsize=size, layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[3.2, size[1] - 3.2])
    _draw_histogram(top.subplots(), reports, labels)
    axes = bottom.subplots(
        len(reports), len(sites), squeeze=False, width_ratios=widths, height_ratios=heights
    )
    limit = max(abs(value) for report in reports for value in report.importances) or 1.0
    for label, row, axes_row in zip(labels, maps, axes, strict=True):
        for site, layers, ax in zip(sites, row, axes_row, strict=True):
            ax.set_title(f"{site} attention {label}".strip())
            if layers:
                image = _draw_map(ax, layers, limit)
            else:
                ax.set_axis_off()  # this model does not have the site, only the other model has
    bottom.colorbar(image, ax=axes, label=reports[0].effect, shrink=0.9)
    return figure


def bin_edges(values: Sequence[float]) -> np.ndarray:
    """Edges of bins of equal width over all values.

    One edge is 0, so that no bin holds both positive and negative values.
    """
    low, high = min(0.0, *values), max(0.0, *values)
    width = (high - low) / _BINS or 1.0
    return np.arange(math.floor(low / width), math.floor(high / width) + 2) * width


def _draw_histogram(ax: Axes, reports: Sequence[HeadReport], labels: Sequence[str]) -> None:
    values = [report.importances for report in reports]
    bars = ax.hist(values, bins=bin_edges([x for row in values for x in row]))[2]
    # matplotlib returns one container of bars for one model, and a list of containers for several.
    for container, fill in zip([bars] if len(reports) == 1 else bars, _FILLS, strict=False):
        for bar in container:
            bar.set(facecolor=fill["color"], hatch=fill.get("hatch"), edgecolor="black")
    ax.axvline(0, color="black", linestyle="--", linewidth=1)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel(f"{reports[0].effect} when the head is masked")
    ax.set_ylabel("number of heads")
    if len(reports) == 1:
        ax.set_title(reports[0].checkpoint)
    else:
        names = [f"{x}  {report.checkpoint}" for x, report in zip(labels, reports, strict=True)]
        ax.legend([container[0] for container in bars], names)


def _layers_of(report: HeadReport, site: str) -> list[LayerReport]:
    return [layer for layer in report.layers if layer.site == site]


def _draw_map(ax: Axes, layers: Sequence[LayerReport], limit: float) -> AxesImage:
    """Draw a grid of layers × heads that shows each importance as a colour and as a number."""
    grid = np.full((len(layers), max(len(x.importance) for x in layers)), np.nan)
    for row, layer in enumerate(layers):
        grid[row, : len(layer.importance)] = layer.importance
        for head, value in enumerate(layer.importance):
            ink = "white" if abs(value) > 0.6 * limit else "black"
            ax.text(head, row, f"{value:+.2g}", ha="center", va="center", size=7, color=ink)
    ax.set_xticks(range(grid.shape[1]))
    ax.set_yticks(range(len(layers)), [layer.layer for layer in layers])
    ax.set(xlabel="head", ylabel="layer")
    return ax.imshow(grid, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
