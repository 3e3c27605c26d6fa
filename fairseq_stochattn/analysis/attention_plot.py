"""Heat maps of attention: mean and std/mean of the weight of every (query, key) pair.

The site of an attention module is encoder (self-attention), decoder (self-attention) or cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import InputError
from ..core.heads import select_heads
from ..core.selection import parse_heads
from ..uncertainty.sampling import is_random
from .evaluation import Evaluation
from .sentences import Sentence
from .weights import find_attention, is_pooling, sample_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SQUARE_SIDE = 0.31  # inches per (query, key) pair, large enough for a number of two digits
_LETTER_WIDTH = 0.085  # inches
_LONGEST_TOKEN = 18  # longer tokens are cut to this many letters
_DIGITS_UP_TO = 40  # maps with more queries or keys than this show no numbers
# Not pure black: ``svg.inline_svg`` replaces black by the text colour of the page, but these
# numbers are printed on coloured squares.
_DARK_INK, _LIGHT_INK = "#010101", "#ffffff"


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one head, or their mean over all heads, for one sentence."""

    title: str
    site: str
    queries: list[str]
    keys: list[str]
    mean: np.ndarray  # (T, S)
    ratio: np.ndarray | None  # (T, S): std/mean; None if the attention is not random
    # The variable whose std/mean is ``ratio``: "the weight", or "S", the weight before
    # normalisation.
    of: str

    def size(self) -> tuple[float, float]:
        """Width and height in inches of one panel, including its token labels."""
        query_label, key_label = (
            _LETTER_WIDTH * min(_LONGEST_TOKEN, max(map(len, tokens)))
            for tokens in (self.queries, self.keys)
        )
        width = _SQUARE_SIDE * max(4, len(self.keys)) + query_label + 1.4
        return max(3.2, width), _SQUARE_SIDE * max(3, len(self.queries)) + key_label + 1.4


def attention_maps(
    evaluation: Evaluation,
    sentence: Sentence,
    sites: str | None = None,
    layers: str = "last",
    heads: str = "mean",
    samples: int = 20,
    unnormalised: bool = False,
) -> list[AttentionMap]:
    """The maps for a sentence, one per selected site, layer and head.

    If ``sites`` is None, the cross-attention is drawn, or the first site if the model has no
    cross-attention. ``heads`` is ``mean`` for the mean over heads, or a selection in the format of
    ``parse_heads``.
    """
    groups = find_attention(evaluation.model, pooling=True)
    if sites is None:
        present = [group.site for group in groups]
        sites = "cross" if "cross" in present else present[0]
    groups = select_heads(groups, sites, layers, names=("--sites", "--layers"))
    random = is_random(evaluation.model)
    if unnormalised and (heads == "mean" or not random):
        needed = "single heads: add --heads all or 0,2" if random else "random attention"
        raise InputError(f"--unnormalised needs {needed}")
    chosen = {
        group.name: parse_heads(heads, group.num_heads, name="--heads")
        for group in groups
        if heads != "mean"
    }
    maps = []
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
        if is_pooling(group):
            maps.append(_pooling_map(place, keys, mean[[row for row, _ in rows], 0], rows))
            continue
        maps += [
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
    return maps


def _pooling_map(
    place: str, keys: list[str], mean: np.ndarray, rows: Sequence[tuple[int, str]]
) -> AttentionMap:
    """The weights (H, S) of heads that attend once per sentence: one row per head (Fig. 1)."""
    return AttentionMap(
        title=f"{place}, one row per head",
        site="pooling",
        queries=[name for _, name in rows],
        keys=keys,
        mean=mean,
        ratio=None,
        of="the weight",
    )


def attention_figure(maps: Sequence[AttentionMap], title: str) -> Figure:
    """A figure with one row per map: the mean weights on the left, std/mean on the right."""
    from matplotlib.figure import Figure

    columns = 1 if maps[0].ratio is None else 2
    sizes = [heatmap.size() for heatmap in maps]
    heights = [height for _, height in sizes]
    size = (columns * max(width for width, _ in sizes), sum(heights) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(maps), columns, squeeze=False, height_ratios=heights)
    for heatmap, row in zip(maps, axes, strict=True):
        draw_mean(row[0], heatmap)
        if heatmap.ratio is not None:
            draw_ratio(row[1], heatmap)
    figure.suptitle(title)
    return figure


def draw_mean(ax: Axes, heatmap: AttentionMap) -> None:
    """Draw the mean weights. The squares of pairs with weight 0 stay empty."""
    visible = np.where(heatmap.mean > 0, heatmap.mean, np.nan)
    _draw(ax, heatmap, visible, "mean weight", "cividis")


def draw_ratio(ax: Axes, heatmap: AttentionMap) -> None:
    """Draw std/mean of the weights, or of S."""
    _draw(ax, heatmap, heatmap.ratio, f"std/mean of {heatmap.of}", "inferno")


def _draw(ax: Axes, heatmap: AttentionMap, grid: np.ndarray, what: str, colours: str) -> None:
    """Draw a grid (T, S) with the tokens on both axes. The squares of NaN values stay empty."""
    top = max(np.nanmax(grid, initial=0.0), 1e-9)
    image = ax.imshow(grid, cmap=colours, vmin=0, vmax=top, aspect="equal")
    ax.set_xticks(
        range(len(heatmap.keys)),
        map(_tick_label, heatmap.keys),
        rotation=90,
        fontsize=8,
    )
    ax.set_yticks(range(len(heatmap.queries)), map(_tick_label, heatmap.queries), fontsize=8)
    ax.tick_params(length=0)
    ax.set_xlabel("key: token read" if heatmap.site == "decoder" else "key")
    labels = {"encoder": "query", "pooling": ""}
    ax.set_ylabel(labels.get(heatmap.site, "query: token to write"))
    place = heatmap.title.replace(", layer", "\nlayer")
    ax.set_title(f"{place}\n{what}")
    for spine in ax.spines.values():
        spine.set_visible(False)
    if max(grid.shape) <= _DIGITS_UP_TO:
        for (row, column), value in np.ndenumerate(grid):
            if np.isfinite(value):
                # Both colour scales start dark and end light.
                ink = _LIGHT_INK if value < 0.55 * top else _DARK_INK
                text = _number(value)
                ax.text(column, row, text, ha="center", va="center", size=6, color=ink)
    ax.figure.colorbar(image, ax=ax, shrink=0.7, aspect=15)


def _number(value: float) -> str:
    """The number with at most three characters, such as .07, .40 or 1.3."""
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else f"{value:.1f}"


def _tick_label(token: str) -> str:
    """The token, shortened if it is too long."""
    short = token if len(token) <= _LONGEST_TOKEN else f"{token[: _LONGEST_TOKEN - 1]}…"
    # matplotlib would read the text between two dollar signs as a formula.
    return short.replace("$", r"\$")
