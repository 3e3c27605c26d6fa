"""Reads what data-prep writes for ``--task vqa``: questions, soft answers and image regions.

A folder has vqa.json (the answers, the width of the features, the grid of the regions if they form
one), question/ (binarised questions), and for every split SPLIT.npz (which image a question is
about, which regions an image has, the scores of the answers) and SPLIT.regions: the features of
all regions, one row of 16-bit floats each, which are mapped into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.json_input import read_json

LAYOUT = "vqa.json"
DTYPE = np.dtype("<f2")  # of the features


@dataclass(frozen=True)
class Layout:
    """What all splits share."""

    answers: list[str]
    width: int  # numbers per region
    grid: tuple[int, int] | None  # rows and columns, if the regions of every image form a grid


@dataclass(frozen=True)
class Split:
    """The images and answers of Q questions about M images."""

    image: np.ndarray  # (Q,): the image of every question
    question_id: np.ndarray  # (Q,): the number of the question in the corpus
    starts: np.ndarray  # (M + 1,): image i has the regions starts[i] to starts[i + 1] − 1
    regions: np.ndarray  # (all regions, width), mapped into memory
    # Question q has the answers answer_starts[q] to answer_starts[q + 1] − 1, most frequent first;
    # None in a set without labels.
    answer_starts: np.ndarray | None  # (Q + 1,)
    answers: np.ndarray | None
    scores: np.ndarray | None

    def features(self, question: int) -> np.ndarray:
        """The features of the question's image, (R, width) in fp32."""
        image = self.image[question]
        return self.regions[self.starts[image] : self.starts[image + 1]].astype(np.float32)

    def num_regions(self, question: int) -> int:
        image = self.image[question]
        return int(self.starts[image + 1] - self.starts[image])

    def soft_answers(self, question: int) -> tuple[np.ndarray, np.ndarray]:
        """The answers of a question, most frequent first, and their scores."""
        part = slice(self.answer_starts[question], self.answer_starts[question + 1])
        return self.answers[part], self.scores[part]


def read_layout(folder: Path) -> Layout:
    """Read vqa.json; raises ``InputError`` if it is missing or damaged."""
    path = folder / LAYOUT
    if not path.is_file():
        raise InputError(
            f"{path} does not exist; stochattn-prepare vqa2 and easy_vqa write such data"
        )
    content = read_json(path)
    found = content if isinstance(content, dict) else {}
    answers, width, grid = (found.get(name) for name in ("answers", "width", "grid"))
    names = isinstance(answers, list) and all(isinstance(x, str) for x in answers)
    if not names or not answers or not _is_count(width):
        raise InputError(f"{path} is damaged: it has no list of answers, or no width")
    if grid is not None and not (
        isinstance(grid, list) and len(grid) == 2 and all(map(_is_count, grid))
    ):
        raise InputError(f"{path} is damaged: its grid is not two numbers")
    return Layout(answers, width, None if grid is None else (grid[0], grid[1]))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def read_split(folder: Path, split: str, layout: Layout) -> Split:
    """Read the images and answers of a split; raises ``InputError`` if a file is damaged."""
    path = folder / f"{split}.npz"
    if not path.is_file():
        raise InputError(f"no {split} set in {folder}: there is no {path.name}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive raises errors of any kind
        raise InputError(f"{path} is damaged: {type(error).__name__}") from None
    try:
        return _checked(arrays, folder / f"{split}.regions", layout)
    except (KeyError, InputError) as error:
        cause = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path} is damaged: {cause}") from None


def _checked(arrays: dict[str, Any], features: Path, layout: Layout) -> Split:
    def whole(name: str, low: int, high: int) -> np.ndarray:
        x = arrays[name]
        if x.dtype.kind != "i" or x.ndim != 1:
            raise InputError(f"{name} is not an array of whole numbers")
        if x.size and not (low <= x.min() and x.max() < high):
            raise InputError(f"{name} has a number outside of {low} to {high - 1}")
        return x.astype(np.int64)

    def ends(name: str, last: int) -> np.ndarray:
        x = whole(name, 0, last + 1)
        if not len(x) or x[0] != 0 or x[-1] != last or (np.diff(x) < 0).any():
            raise InputError(f"{name} does not divide {last} entries")
        return x

    regions = _mapped(features, layout.width)
    starts = ends("starts", len(regions))
    images = len(starts) - 1
    if layout.grid is not None and (np.diff(starts) != layout.grid[0] * layout.grid[1]).any():
        raise InputError(f"an image does not have {layout.grid[0]} × {layout.grid[1]} regions")
    image = whole("image", 0, images)
    question_id = whole("question_id", 0, 2**62)
    if len(question_id) != len(image):
        raise InputError("question_id and image differ in length")
    if "answers" not in arrays:
        return Split(image, question_id, starts, regions, None, None, None)
    answers, scores = whole("answers", 0, len(layout.answers)), arrays["scores"]
    if scores.dtype != np.float32 or scores.shape != answers.shape:
        raise InputError("scores does not fit answers")
    if scores.size and not (scores.min() > 0 and scores.max() <= 1):
        raise InputError("a score is not above 0 and at most 1")
    answer_starts = ends("answer_starts", len(answers))
    if len(answer_starts) != len(image) + 1:
        raise InputError("answer_starts does not fit image")
    return Split(image, question_id, starts, regions, answer_starts, answers, scores)


def _mapped(path: Path, width: int) -> np.ndarray:
    if not path.is_file():
        raise InputError(f"{path.name} does not exist")
    size = path.stat().st_size
    rows, rest = divmod(size, width * DTYPE.itemsize)
    if rest or not rows:
        raise InputError(f"{path.name} has {size} bytes, which is not a number of regions")
    return np.memmap(path, DTYPE, mode="r", shape=(rows, width))
