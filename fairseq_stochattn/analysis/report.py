"""The sections of a run's page: how it was trained, how good it is, what it is unsure of.

Each takes what was found and returns HTML; of what is missing it says how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_stochattn.analysis import page
from fairseq_stochattn.analysis.attention_plot import AttentionMap, draw_mean, draw_ratio
from fairseq_stochattn.analysis.calibration_plot import (
    SQUARE,
    draw_out_of_domain,
    draw_reliability,
    draw_risk_coverage,
)
from fairseq_stochattn.analysis.curves import LAYER_TITLES, draw_curve, draw_layers
from fairseq_stochattn.analysis.drawing import PANEL, panels
from fairseq_stochattn.analysis.evaluation_file import name_of, with_part
from fairseq_stochattn.analysis.heads_plot import heads_figure
from fairseq_stochattn.analysis.heads_report import HeadReport
from fairseq_stochattn.analysis.run_folder import Training
from fairseq_stochattn.analysis.svg import inline_svg
from fairseq_stochattn.analysis.training_log import Series, TrainingLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Name, which way is better, what it is.
METRICS = {
    "accuracy": ("accuracy (%)", "higher", "right answers"),
    "bleu": ("BLEU", "higher", "sacrebleu, of the whole set"),
    "perplexity": ("perplexity", "lower", "how many tokens the model hesitates between"),
    "nll": ("NLL", "lower", "−log of the probability of the right answer"),
    "brier": ("Brier score", "lower", "squared distance of the probabilities from the answer"),
    "ece": ("ECE", "lower", "expected gap between confidence and accuracy"),
    "oe": ("OE", "lower", "the same, where it is too confident"),
    "pavpu": ("PAvPU", "higher", "share that is right and certain, or wrong and uncertain"),
    "aurc": ("AURC", "lower", "mean share wrong, whatever share is answered"),
    "predictive_entropy": ("predictive entropy", "", "all uncertainty"),
    "expected_entropy": ("expected entropy", "", "of it, what is in the data"),
    "mutual_information": ("mutual information", "", "of it, what is in the attention"),
}


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
        "learning rate": _text(get("optimization", "lr")),
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
        + page.facts((key, _text(value)) for key, value in sorted(group.items()) if value != "")
        for name, group in sorted(training.config.items())
        if group
    ]
    return html + page.details("All settings", "".join(groups))


def training_curves(log: TrainingLog) -> str:
    """Every named loss, then what is told of single layers."""
    pictures = [
        _panel(
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
        _panel(
            f"layers{number}",
            lambda ax, name=name, site=site: draw_layers(ax, log, name, site),
            caption=f"{LAYER_TITLES.get(name, name)} of every layer, {site} attention",
            described=f"{LAYER_TITLES.get(name, name)} of {len(of_site)} layers over training.",
            size=SQUARE,
        )
        for number, ((name, site), of_site) in enumerate(log.layers().items())
    ]
    return html + (page.heading("Layers") + page.gallery(layers) if layers else "")


def metrics(evaluation: dict[str, Any]) -> str:
    entries = evaluation["checkpoints"]
    known = dict.fromkeys(METRICS) | dict.fromkeys(x for e in entries for x in e["metrics"])
    rows = []
    for name in known:
        values = [entry["metrics"].get(name) for entry in entries]
        if any(value is not None for value in values):
            label, better, meaning = METRICS.get(name, (name.replace("_", " "), "", ""))
            below = f"{meaning}; {better} is better" if better else meaning
            rows.append([page.titled(label, below), *map(_text, values)])
    head = ["measure", *map(name_of, entries)]
    origin = f"{evaluation.get('split', '')} set of {evaluation.get('data', '')}"
    caption = f"{origin}, {evaluation.get('samples', 1)} samples of the attention"
    html = page.table(caption, head, rows, numeric=range(1, 1 + len(entries)))
    for entry in entries:
        if entry.get("signature"):
            html += page.paragraph(f"BLEU of {name_of(entry)}: {entry['signature']}")
    if evaluation.get("comparisons"):
        rows = [
            (f"{x['of']} − {x['with']}", f"{x['bleu_difference']:+.2f}", _text(x["p_value"]))
            for x in evaluation["comparisons"]
        ]
        method = evaluation["comparisons"][0].get("method", "")
        html += page.table(f"Differences, {method}", ["", "BLEU", "p"], rows, numeric=(1, 2))
    return html + page.gallery(_calibration(evaluation))


def _calibration(evaluation: dict[str, Any]) -> list[str]:
    pictures = [
        _panel(
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
            _panel(
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
            _panel(
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
                _text(one["text"]),
                _text(one["prediction"]),
                _text(one.get("target")),
                verdict,
                "" if one.get("confidence") is None else page.bar(one["confidence"]),
                _text(one.get("entropy")),
                _text(one.get("mutual_information")),
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


def attention(maps: Sequence[AttentionMap], about: str) -> str:
    pictures = []
    for number, one in enumerate(maps):
        drawn: list[tuple[str, Callable, str]] = [("mean", draw_mean, "mean weight")]
        if one.ratio is not None:
            drawn.append(("ratio", draw_ratio, "std/mean: how unsure it is of the weight"))
        pictures += [
            _panel(
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


def _panel(
    name: str,
    draw: Callable[[Axes], None],
    caption: str,
    described: str,
    size: tuple[float, float] = PANEL,
) -> str:
    figure, (ax,) = panels(1, size)
    draw(ax)
    return page.picture(inline_svg(figure, name), caption, described)


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


def _bins(bins: Sequence[dict[str, Any]]) -> str:
    return " ".join(
        f"Confidence {x['confidence']:.2f}: accuracy {x['accuracy']:.2f} of {x['count']}."
        for x in bins
        if x["count"]
    )


def _strongest(one: AttentionMap) -> str:
    row, column = divmod(int(one.mean.argmax()), one.mean.shape[1])
    return f"{one.queries[row]} to {one.keys[column]} with {one.mean[row, column]:.2f}"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
