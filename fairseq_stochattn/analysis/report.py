"""Sections of the HTML page about a run: configuration, training curves, attention, heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import page
from .attention_plot import AttentionMap, draw_mean, draw_ratio
from .curves import LAYER_TITLES, draw_curve, draw_layers
from .drawing import SQUARE
from .heads_plot import heads_figure
from .heads_report import HeadReport
from .run_folder import Training
from .svg import inline_svg, panel
from .training_log import Series, TrainingLog


def configuration(training: Training) -> str:
    """The most important settings and facts of a run, and a fold-out list of all settings."""
    get = training.get
    model = training.config.get("model") or training.config.get("args", {})
    shown = {
        "architecture": model.get("arch") or model.get("_name"),
        "attention": model.get("attention"),
        "attention sites": model.get("attention_sites"),
        "attention layers": model.get("attention_layers"),
        "parameters": f"{training.parameters:,}",
        "task": get("task", "_name"),
        "data": get("task", "data"),
        "criterion": get("criterion", "_name"),
        "optimizer": get("optimizer", "_name"),
        "learning rate": page.shown(get("optimization", "lr")),
        "tokens per batch": get("dataset", "max_tokens"),
        "sentences per batch": get("dataset", "batch_size"),
        "updates": training.updates,
        "epochs": training.epochs,
        "training time": None if training.seconds is None else f"{training.seconds:,.0f} s",
        "best validation": None if training.best is None else f"{training.best:.4g}",
        "seed": get("common", "seed"),
    }
    html = page.facts((name, value) for name, value in shown.items() if value is not None)
    groups = [
        page.heading(name)
        + page.facts(
            (key, page.shown(value)) for key, value in sorted(group.items()) if value != ""
        )
        for name, group in sorted(training.config.items())
        if group
    ]
    return html + page.details("All settings", "".join(groups))


def training_curves(log: TrainingLog) -> str:
    """Figures of every named loss, followed by figures of the quantities logged per layer."""
    pictures = [
        panel(
            f"curve{number}",
            lambda ax, name=name: draw_curve(ax, log, name),
            caption=f"{name} at the end: {_at_the_end(log, name)}",
            description=f"{name} over training. {_first_and_last(log, name)}",
        )
        for number, name in enumerate(log.losses())
    ]
    legend = "Over the updates: solid lines for training, dashed lines with markers for validation."
    html = page.paragraph(legend) + page.gallery(pictures)
    layers = [
        panel(
            f"layers{number}",
            lambda ax, name=name, site=site: draw_layers(ax, log, name, site),
            caption=f"{LAYER_TITLES.get(name, name)} of every layer, {site} attention",
            description=f"{LAYER_TITLES.get(name, name)} of {len(indices)} layers over training.",
            size=SQUARE,
        )
        for number, ((name, site), indices) in enumerate(log.layers().items())
    ]
    return html + (page.heading("Layers") + page.gallery(layers) if layers else "")


def attention(maps: Sequence[AttentionMap], about: str) -> str:
    """Heat maps of attention: the mean weights and, if the attention is random, std/mean.

    ``about`` is the text above the maps.
    """
    pictures = []
    for number, heatmap in enumerate(maps):
        drawn: list[tuple[str, Callable, str]] = [("mean", draw_mean, "mean weight")]
        if heatmap.ratio is not None:
            drawn.append(("ratio", draw_ratio, "std/mean: relative uncertainty of the weight"))
        pictures += [
            panel(
                f"{name}{number}",
                lambda ax, draw=draw, heatmap=heatmap: draw(ax, heatmap),
                caption=caption,
                description=f"Heat map, {heatmap.title}: {caption}, "
                f"{len(heatmap.queries)} queries by {len(heatmap.keys)} keys. "
                f"Strongest: {_strongest(heatmap)}.",
                size=heatmap.size(),
            )
            for name, draw, caption in drawn
        ]
    return page.paragraph(about) + page.gallery(pictures)


def head_importance(reports: Sequence[HeadReport]) -> str:
    """The figure of the importance of heads."""
    figure = heads_figure(reports)
    count = sum(len(report.importances) for report in reports)
    caption = f"{reports[0].effect} when a head is masked, {count} heads"
    description = f"Histogram and map of the importance of {count} heads."
    return page.gallery(
        [page.picture(inline_svg(figure, "heads"), caption, description, paper=True)]
    )


def _lines(log: TrainingLog, name: str) -> dict[str, Series]:
    """The series of one quantity by part of the run: training, or the name of a validation set."""
    by_part = {"training": log.trained(name), **{x: log.series(x, name) for x in log.validated}}
    return {part: series for part, series in by_part.items() if series is not None}


def _at_the_end(log: TrainingLog, name: str) -> str:
    """The last values of a curve, in words."""
    lines = _lines(log, name).items()
    return ", ".join(f"{series.values[-1]:.4g} in {part}" for part, series in lines)


def _first_and_last(log: TrainingLog, name: str) -> str:
    """The first and last values of a curve, in words."""
    return " ".join(
        f"{part}: from {series.values[0]:.4g} at update {series.updates[0]} to "
        f"{series.values[-1]:.4g} at {series.updates[-1]}."
        for part, series in _lines(log, name).items()
    )


def _strongest(heatmap: AttentionMap) -> str:
    """The (query, key) pair with the largest mean weight, in words."""
    row, column = divmod(int(heatmap.mean.argmax()), heatmap.mean.shape[1])
    return f"{heatmap.queries[row]} to {heatmap.keys[column]} with {heatmap.mean[row, column]:.2f}"
