"""Prepare easy-VQA: questions about images of one coloured shape, with 13 answers.

Example: stochattn-prepare easy_vqa --out data-bin/easy_vqa
In a clone, python data-prep/prepare_easy_vqa.py takes the same flags.

The corpus is the content of the Python package easy-vqa: 4,000 images of 64 × 64 pixels for
training and 1,000 for testing, with about 48,000 questions. It is read from the installed package
(pip install 'fairseq_stochattn[vision]'), or from the folder --from, which has train/, test/ and
answers.txt. Every tenth training image is held out for validation, with all its questions.

The features are the pixels themselves: an image is a grid of square patches (8 × 8 pixels by
default), and each patch is a region. Its features are the colours of its pixels, normalised per
colour channel to mean 0 and standard deviation 1 over the training images, followed by the row and
column of the patch, scaled to −1 … 1. There is no trained encoder.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steps.command import build_output, common_parser, main_of
from steps.errors import PrepError
from steps.lines import Report, TextFile, read_lines
from steps.tables import read_json
from steps.vqa import Question, prepare, summary

SIDE = 64  # pixels
HOLD_OUT = 10  # every tenth training image is for validation
INSTALL = "pip install 'fairseq_stochattn[vision]'"
# The number of a test image is shifted by this, so that all images have different numbers.
TEST = 1_000_000


def package_data() -> Path:
    """Return the data folder of the installed package easy-vqa, without importing it."""
    found = importlib.util.find_spec("easy_vqa")
    if found is None or found.origin is None:
        raise PrepError(f"the package easy-vqa is not installed: {INSTALL}, or give --from")
    return Path(found.origin).parent / "data"


def read_questions(folder: Path, part: str) -> list[Question]:
    """Return the questions of ``train`` or ``test``; the ids are their places in the file."""
    path = folder / part / "questions.json"
    rows = read_json(TextFile(path))
    shift = TEST if part == "test" else 0
    found = []
    for number, row in enumerate(rows if isinstance(rows, list) else ()):
        if not (isinstance(row, list) and [type(x) for x in row] == [str, str, int]):
            raise PrepError(f"{path}: entry {number} is not [question, answer, image]")
        text, answer, image = row
        found.append(Question(number, image + shift, text, {answer: 1.0}))
    if not found:
        raise PrepError(f"{path} has no questions")
    return found


def read_answers(folder: Path) -> list[str]:
    """Return the answers in alphabetical order."""
    lines = read_lines(TextFile(folder / "answers.txt"), Report())
    answers = sorted({line.strip() for line in lines if line and line.strip()})
    if len(answers) < 2:
        raise PrepError(f"{folder / 'answers.txt'} has fewer than two answers")
    return answers


def read_image(folder: Path, image: int) -> np.ndarray:
    """Return the pixels of an image, (64, 64, 3), with numbers from 0 to 1."""
    try:
        from PIL import Image
    except ImportError:
        raise PrepError(f"Pillow is not installed: {INSTALL}") from None
    part, number = ("test", image - TEST) if image >= TEST else ("train", image)
    path = folder / part / "images" / f"{number}.png"
    try:
        with Image.open(path, formats=("PNG",)) as picture:
            if picture.size != (SIDE, SIDE):
                raise PrepError(f"{path} has {picture.size} pixels instead of {SIDE} × {SIDE}")
            pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PrepError(f"{path} cannot be read: {error}") from None
    return pixels / 255


def channel_statistics(folder: Path, images: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each colour channel over these images, (3,) each."""
    sums = np.zeros((2, 3))
    for image in images:
        pixels = read_image(folder, image).reshape(-1, 3).astype(np.float64)
        sums += pixels.mean(axis=0), np.square(pixels).mean(axis=0)
    mean, square = sums / len(images)
    return mean, np.sqrt(np.maximum(square - mean**2, 1e-6))


def patches(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Cut pixels (64, 64, 3) into a grid of n × n patches, (n², patch² · 3 + 2), row by row.

    The last two features are the row and column of a patch, from −1 to 1.
    """
    n = SIDE // patch
    cut = pixels.reshape(n, patch, n, patch, 3).swapaxes(1, 2).reshape(n * n, -1)
    places = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
    rows, columns = np.meshgrid(places, places, indexing="ij")
    return np.concatenate([cut, rows.reshape(-1, 1), columns.reshape(-1, 1)], axis=1)


def build(folder: Path, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Write the data and return its statistics."""
    every = read_questions(folder, "train")
    held_out = {image for image in {q.image for q in every} if image % HOLD_OUT == HOLD_OUT - 1}
    splits = {
        "train": [q for q in every if q.image not in held_out],
        "valid": [q for q in every if q.image in held_out],
        "test": read_questions(folder, "test"),
    }
    mean, std = channel_statistics(folder, sorted({q.image for q in splits["train"]}))

    def features(image: int) -> np.ndarray:
        return patches((read_image(folder, image) - mean) / std, args.patch)

    n = SIDE // args.patch
    found = prepare(
        out, splits, features, read_answers(folder), 3 * args.patch**2 + 2, (n, n),
        workers=args.workers, keep_text=args.keep_text,
    )  # fmt: skip
    return {**found, "channels": {"mean": mean.tolist(), "std": std.tolist()}}


def sources(folder: Path) -> Iterator[Path]:
    """Yield the files that the manifest has checksums of: all but the images."""
    yield from (folder / "answers.txt", *(folder / x / "questions.json" for x in ("train", "test")))


def run(argv: Sequence[str] | None) -> None:
    parser = common_parser(__doc__, downloads=False)
    parser.add_argument(
        "--from", dest="origin", type=Path,
        help="folder with train/, test/ and answers.txt, default: the installed package easy-vqa",
    )  # fmt: skip
    parser.add_argument(
        "--patch", type=int, choices=(4, 8, 16), default=8,
        help="width and height of a patch in pixels, default: %(default)s",
    )  # fmt: skip
    args = parser.parse_args(argv)
    folder = args.origin or package_data()
    build_output(
        args,
        {"patch": args.patch},
        list(sources(folder)),
        lambda out: build(folder, out, args),
        summary,
    )


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
