"""Small questions about images for tests, as data of ``--task vqa``.

An image has one to four regions with five features. One region shows a colour: one of the first
three features is 3. ``what color is it ?`` asks for the colour, ``is it red ?`` for yes or no.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import zoo
from steps.vqa import Question, prepare

COLORS = ("red", "green", "blue")
ANSWERS = (*COLORS, "no", "yes")
WIDTH = 5


def features(image: int, regions: int | None = None) -> np.ndarray:
    """Return the features of an image, (R, 5), whose colour is the image's number modulo 3."""
    rng = np.random.default_rng(image)
    count = regions or 1 + image % 4
    x = 0.3 * rng.standard_normal((count, WIDTH))
    x[rng.integers(count), image % 3] = 3
    return x


def questions(first: int, images: int) -> list[Question]:
    """Return two questions about each image; the first has two correct answers."""
    found = []
    for image in range(first, first + images):
        color, asked = COLORS[image % 3], COLORS[image // 3 % 3]
        # "crimson" is not among the answers.
        soft = {color: 0.9, "crimson": 0.6, COLORS[(image + 1) % 3]: 0.3}
        found.append(Question(2 * image, image, "What color is it?", soft))
        answer = {"yes" if asked == color else "no": 1.0}
        found.append(Question(2 * image + 1, image, f"Is it {asked}?", answer))
    return found


def write(folder: Path, grid: tuple[int, int] | None = None) -> Path:
    """Write 90 images for training, 30 for validation and 31 for testing.

    With a grid, every image has as many regions as the grid. The last image of the test set has
    only a question without a known answer.
    """
    folder.mkdir(parents=True)
    unknown = Question(999, 150, "What is it?", {"nothing": 1.0})
    splits = {
        "train": questions(0, 90),
        "valid": questions(90, 30),
        "test": [*questions(120, 30), unknown],
    }
    count = grid and grid[0] * grid[1]
    prepare(folder, splits, lambda image: features(image, count), ANSWERS, WIDTH, grid)
    return folder


def build(arch: str = "mcan", seed: int = 1, **flags: object) -> nn.Module:
    """Return a tiny model for images of this width, by default without dropout."""
    task = zoo.task(feature_width=WIDTH, answers=list(ANSWERS))
    return zoo.build(arch, seed, for_task=task, **flags)


def batch(words: tuple[int, ...] = (5, 3, 1), regions: tuple[int, ...] = (4, 2, 1)) -> dict:
    """Return inputs of the model: random questions and images of these lengths."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(count, WIDTH, generator=generator) for count in regions]
    return inputs(zoo.sentences(*words), rows)


def inputs(rows: list[Tensor], images: list[Tensor], more: int = 0) -> dict[str, Tensor]:
    """Return one batch of questions and images, with ``more`` columns of padding in both."""
    width = max(map(len, rows)) + more
    padded = nn.utils.rnn.pad_sequence(images, batch_first=True)
    if more:  # what stands in padding must not matter
        padded = torch.cat([padded, torch.full((len(rows), more, padded.size(2)), 7.0)], dim=1)
    return {
        "src_tokens": zoo.pad(rows, width=width),
        "regions": padded,
        "num_regions": torch.tensor([len(image) for image in images]),
    }
