"""Heat maps of attention: mean and std/mean of every query-key pair, tokens on the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.sentences import Sentence
from fairseq_stochattn.analysis.weights import find_attention, sample_weights
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.heads import select_heads
from fairseq_stochattn.sampling import is_random

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.31  # inches, room for two digits
_LETTER = 0.085  # inches
_LONGEST = 18  # letters of a token that are shown
_DIGITS_UP_TO = 40  # tokens of a side up to which cells have their numbers
# Ink on a cell stays as it is on dark pages, where pure black would be turned.
_DARK_INK, _LIGHT_INK = "#010101", "#ffffff"


@dataclass(frozen=True)
class AttentionMap:
    """One head (or the mean of the heads) on one sentence."""

    title: str
    site: str
    queries: list[str]
    keys: list[str]
    mean: np.ndarray  # (T, S)
    ratio: np.ndarray | None  # (T, S); None where the attention is not random
    of: str  # what the ratio is of: the weight, or S

    def size(self) -> tuple[float, float]:
        """Inches that one panel needs for its cells and tokens."""
        wide, high = (
            _LETTER * min(_LONGEST, max(map(len, tokens))) for tokens in (self.queries, self.keys)
        )
        width = _CELL * max(4, len(self.keys)) + wide + 1.4
        return max(3.2, width), _CELL * max(3, len(self.queries)) + high + 1.4


def choose_heads(spec: str, count: int) -> list[int]:
    """``all | 0,2`` → heads of a module."""
    if spec.strip() == "all":
        return list(range(count))
    try:
        heads = sorted({int(part) for part in spec.split(",")})
    except ValueError:
        raise UsageError(f"--heads: '{spec}' is neither all nor numbers such as 0,2") from None
    for head in heads:
        if not 0 <= head < count:
            raise UsageError(f"--heads: there is no head {head}, only 0 to {count - 1}")
    return heads


def attention_maps(
    evaluation: Evaluation,
    sentence: Sentence,
    sites: str | None = None,
    layers: str = "last",
    heads: str = "mean",
    samples: int = 20,
    unnormalised: bool = False,
) -> list[AttentionMap]:
    """The maps of a sentence; without sites those of cross-attention, or of what there is."""
    groups = find_attention(evaluation.model)
    if sites is None:
        present = [group.site for group in groups]
        sites = "cross" if "cross" in present else present[0]
    groups = select_heads(groups, sites, layers, flag="-")
    random = is_random(evaluation.model)
    if unnormalised and (heads == "mean" or not random):
        cause = "of single heads: --heads all or 0,2" if random else "of random attention"
        raise UsageError(f"--unnormalised is {cause}")
    chosen = {
        group.name: choose_heads(heads, group.num_heads) for group in groups if heads != "mean"
    }
    found = []
    for group, drawn in zip(
        groups, sample_weights(evaluation.model, sentence, groups, samples), strict=True
    ):
        queries, keys = sentence.tokens(group.site)
        place = f"{sentence.name} {group.site} attention, layer {group.layer}".strip()
        if heads == "mean":
            drawn, rows = drawn.averaged(), [(0, f"mean of {group.num_heads} heads")]
        else:
            rows = [(head, f"head {head}") for head in chosen[group.name]]
        mean = drawn.mean().numpy()
        ratio = drawn.ratio(unnormalised).numpy() if random else None
        found += [
            AttentionMap(
                title=f"{place}, {name}",
                site=group.site,
                queries=queries,
                keys=keys,
                mean=mean[head],
                ratio=None if ratio is None else ratio[head],
                of="S" if unnormalised else "the weight",
            )
            for head, name in rows
        ]
    return found


def attention_figure(maps: Sequence[AttentionMap], title: str) -> Figure:
    """A row for every map: its mean, and beside it std/mean."""
    from matplotlib.figure import Figure

    columns = 1 if maps[0].ratio is None else 2
    sizes = [one.size() for one in maps]
    heights = [height for _, height in sizes]
    size = (columns * max(width for width, _ in sizes), sum(heights) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(maps), columns, squeeze=False, height_ratios=heights)
    for one, row in zip(maps, axes, strict=True):
        draw_mean(row[0], one)
        if one.ratio is not None:
            draw_ratio(row[1], one)
    figure.suptitle(title)
    return figure


def draw_mean(ax: Axes, one: AttentionMap) -> None:
    seen = np.where(one.mean > 0, one.mean, np.nan)
    _draw(ax, one, seen, "mean weight", "cividis")


def draw_ratio(ax: Axes, one: AttentionMap) -> None:
    _draw(ax, one, one.ratio, f"std/mean of {one.of}", "inferno")


def _draw(ax: Axes, one: AttentionMap, grid: np.ndarray, what: str, colours: str) -> None:
    """Cells that the query never sees stay empty."""
    top = max(np.nanmax(grid, initial=0.0), 1e-9)
    image = ax.imshow(grid, cmap=colours, vmin=0, vmax=top, aspect="equal")
    ax.set_xticks(range(len(one.keys)), map(_shown, one.keys), rotation=90, fontsize=8)
    ax.set_yticks(range(len(one.queries)), map(_shown, one.queries), fontsize=8)
    ax.tick_params(length=0)
    ax.set_xlabel("key: token read" if one.site == "decoder" else "key")
    ax.set_ylabel("query" if one.site == "encoder" else "query: token to write")
    place = one.title.replace(", layer", "\nlayer")
    ax.set_title(f"{place}\n{what}")
    for spine in ax.spines.values():
        spine.set_visible(False)
    if max(grid.shape) <= _DIGITS_UP_TO:
        for (row, column), value in np.ndenumerate(grid):
            if np.isfinite(value):
                # Both colour scales run from dark to light.
                ink = _LIGHT_INK if value < 0.55 * top else _DARK_INK
                text = _number(value)
                ax.text(column, row, text, ha="center", va="center", size=6, color=ink)
    ax.figure.colorbar(image, ax=ax, shrink=0.7, aspect=15)


def _number(value: float) -> str:
    """Two digits: .07, .4, 1.3."""
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else f"{value:.1f}"


def _shown(token: str) -> str:
    # A dollar would begin a formula.
    short = token if len(token) <= _LONGEST else f"{token[: _LONGEST - 1]}…"
    return short.replace("$", r"\$")
