"""Sections of a run's page: how it was trained, its attention and its heads, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairseq_stochattn.analysis import page
from fairseq_stochattn.analysis.attention_plot import AttentionMap, draw_mean, draw_ratio
from fairseq_stochattn.analysis.curves import LAYER_TITLES, draw_curve, draw_layers
from fairseq_stochattn.analysis.drawing import SQUARE
from fairseq_stochattn.analysis.heads_plot import heads_figure
from fairseq_stochattn.analysis.heads_report import HeadReport
from fairseq_stochattn.analysis.run_folder import Training
from fairseq_stochattn.analysis.svg import inline_svg, panel
from fairseq_stochattn.analysis.training_log import Series, TrainingLog


def configuration(training: Training) -> str:
    get = training.get
    model = training.config.get("model") or training.config.get("args", {})
    shown = {
        "architecture": model.get("arch") or model.get("_name"),
        "attention": model.get("attention"),
        "its sites": model.get("attention_sites"),
        "its layers": model.get("attention_layers"),
        "parameters": f"{training.parameters:,}",
        "task": get("task", "_name"),
        "data": get("task", "data"),
        "criterion": get("criterion", "_name"),
        "optimizer": get("optimizer", "_name"),
        "learning rate": page.shown(get("optimization", "lr")),
        "tokens a batch": get("dataset", "max_tokens"),
        "sentences a batch": get("dataset", "batch_size"),
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
    """Every named loss, then what is told of single layers."""
    pictures = [
        panel(
            f"curve{number}",
            lambda ax, name=name: draw_curve(ax, log, name),
            caption=f"{name} at the end: {_at_the_end(log, name)}",
            described=f"{name} over training. {_ends(log, name)}",
        )
        for number, name in enumerate(log.losses())
    ]
    how = "Over the updates: plain lines in training, dashed ones with markers in validation."
    html = page.paragraph(how) + page.gallery(pictures)
    layers = [
        panel(
            f"layers{number}",
            lambda ax, name=name, site=site: draw_layers(ax, log, name, site),
            caption=f"{LAYER_TITLES.get(name, name)} of every layer, {site} attention",
            described=f"{LAYER_TITLES.get(name, name)} of {len(of_site)} layers over training.",
            size=SQUARE,
        )
        for number, ((name, site), of_site) in enumerate(log.layers().items())
    ]
    return html + (page.heading("Layers") + page.gallery(layers) if layers else "")


def attention(maps: Sequence[AttentionMap], about: str) -> str:
    pictures = []
    for number, one in enumerate(maps):
        drawn: list[tuple[str, Callable, str]] = [("mean", draw_mean, "mean weight")]
        if one.ratio is not None:
            drawn.append(("ratio", draw_ratio, "std/mean: how unsure it is of the weight"))
        pictures += [
            panel(
                f"{name}{number}",
                lambda ax, draw=draw, one=one: draw(ax, one),
                caption=caption,
                described=f"Heat map, {one.title}: {caption}, {len(one.queries)} queries by "
                f"{len(one.keys)} keys. Strongest: {_strongest(one)}.",
                size=one.size(),
            )
            for name, draw, caption in drawn
        ]
    return page.paragraph(about) + page.gallery(pictures)


def head_importance(reports: Sequence[HeadReport]) -> str:
    figure = heads_figure(reports)
    count = sum(len(report.importances) for report in reports)
    caption = f"{reports[0].effect} when a head is masked, {count} heads"
    described = f"Histogram and map of the importance of {count} heads."
    return page.gallery([page.picture(inline_svg(figure, "heads"), caption, described, paper=True)])


def _lines(log: TrainingLog, name: str) -> dict[str, Series]:
    found = {"training": log.trained(name), **{x: log.series(x, name) for x in log.validated}}
    return {part: series for part, series in found.items() if series is not None}


def _at_the_end(log: TrainingLog, name: str) -> str:
    lines = _lines(log, name).items()
    return ", ".join(f"{series.values[-1]:.4g} in {part}" for part, series in lines)


def _ends(log: TrainingLog, name: str) -> str:
    """Where a curve begins and ends, in words."""
    return " ".join(
        f"{part}: from {series.values[0]:.4g} at update {series.updates[0]} to "
        f"{series.values[-1]:.4g} at {series.updates[-1]}."
        for part, series in _lines(log, name).items()
    )


def _strongest(one: AttentionMap) -> str:
    row, column = divmod(int(one.mean.argmax()), one.mean.shape[1])
    return f"{one.queries[row]} to {one.keys[column]} with {one.mean[row, column]:.2f}"
