"""Attention over the regions of an image: mean and std/mean of the weights, laid out as the image.

Zhang et al. 2021 (BABN), Fig. 3, plots both for a question of VQA. Here each map belongs to one
image: at the site ``decoder`` a region shows the weight that it receives, averaged over the regions
that attend to it; at the site ``cross`` there is one map per word of the question, and a region
shows the weight that it gives to the word; ``pooling`` shows the weight of each region in the
vector that the answer is predicted from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.heads import select_heads
from ..core.selection import SITES
from ..uncertainty.sampling import is_random, sampled_attention
from .evaluation import Evaluation
from .sentences import Sentence
from .weights import WeightSamples, find_attention, sample_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POOLING = "pooling"
IMAGE_SITES = (POOLING, "decoder", "cross")
_WIDTH, _HEIGHT = 3.0, 2.8  # inches of a panel


@dataclass(frozen=True)
class ImageMap:
    """One number per region of an image, laid out as its grid."""

    title: str
    mean: np.ndarray  # (rows, columns): the weight of every region
    ratio: np.ndarray | None  # std/mean of the weight over samples; None if it is not random


def image_maps(
    evaluation: Evaluation,
    sentence: Sentence,
    sites: str = POOLING,
    layers: str = "last",
    samples: int = 20,
) -> list[ImageMap]:
    """The maps of one question and its image for the chosen sites and layers.

    Weights are averaged over heads. Regions without a grid are laid out in one row.
    """
    chosen = list(IMAGE_SITES) if sites == "all" else [name.strip() for name in sites.split(",")]
    for name in chosen:
        if name not in IMAGE_SITES:
            known = ", ".join(IMAGE_SITES)
            raise InputError(f"--sites {name} has no weights of regions (known: {known})")
    random = is_random(evaluation.model)
    grid = evaluation.task.layout.grid or (1, len(sentence.read))
    maps = []
    if POOLING in chosen:
        weights = pooling_weights(evaluation, sentence, samples if random else 1)
        maps.append(_image_map(f"{sentence.name} pooling of the image", weights, grid, random))
    attended = ",".join(name for name in chosen if name in SITES)
    groups = find_attention(evaluation.model) if attended else []
    groups = select_heads(groups, attended, layers, ("--sites", "--layers")) if attended else []
    drawn = sample_weights(evaluation.model, sentence, groups, samples) if groups else []
    for group, found in zip(groups, drawn, strict=True):
        place = f"{sentence.name} {group.site} attention, layer {group.layer}"
        weights = found.averaged().weights[:, 0]  # (K, R, S)
        if group.site == "decoder":
            maps.append(_image_map(f"{place}\nreceived", weights.mean(dim=1), grid, random))
            continue
        maps += [
            _image_map(f"{place}\nto “{word}”", weights[:, :, number], grid, random)
            for number, word in enumerate(sentence.source)
        ]
    return maps


@torch.no_grad()
def pooling_weights(evaluation: Evaluation, sentence: Sentence, samples: int) -> Tensor:
    """The weights (K, R) of the regions in the last pooling, for K samples of the attention."""
    model = evaluation.model
    with sampled_attention([model]) if is_random(model) else nullcontext():
        _, extra = model(**sentence.copies(samples))
    return extra["image_weights"].double().cpu()


def _image_map(title: str, weights: Tensor, grid: tuple[int, int], random: bool) -> ImageMap:
    """The map of weights (K, R)."""
    found = WeightSamples(weights[:, None, None], None)
    ratio = found.ratio()[0, 0].numpy().reshape(grid) if random else None
    return ImageMap(title, found.mean()[0, 0].numpy().reshape(grid), ratio)


def image_figure(maps: Sequence[ImageMap], title: str) -> Figure:
    """A figure with one row per map: the mean weights on the left, std/mean on the right."""
    from matplotlib.figure import Figure

    columns = 1 if maps[0].ratio is None else 2
    size = (max(4.0, columns * _WIDTH), len(maps) * _HEIGHT + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(maps), columns, squeeze=False)
    for found, row in zip(maps, axes, strict=True):
        _draw(row[0], found.mean, f"{found.title}\nmean weight", "cividis")
        if found.ratio is not None:
            _draw(row[1], found.ratio, f"{found.title}\nstd/mean", "inferno")
    figure.suptitle(title, wrap=True)
    return figure


def _draw(ax: Axes, grid: np.ndarray, title: str, colours: str) -> None:
    top = max(np.nanmax(grid, initial=0.0), 1e-9)
    image = ax.imshow(grid, cmap=colours, vmin=0, vmax=top, aspect="equal")
    ax.set_xticks([])
    ax.set_yticks([])
    # matplotlib would read the text between two dollar signs as a formula.
    ax.set_title(title.replace("$", r"\$"), fontsize=8)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, aspect=15)
