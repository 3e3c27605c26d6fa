"""Labelled examples: what one is made of, which rows can be one, and their text in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import overlap
from steps.errors import PrepError

IGNORE = "<ignore>"
Label = str | list[str] | None
Example = tuple[Iterable[str], Label]
Checked = tuple[list[str], str | None]


@dataclass(frozen=True)
class Shape:
    """What an example is; ``labels`` in the order of their numbers."""

    kind: str  # classification, regression, choice or tagging
    inputs: int = 1
    labels: tuple[str, ...] = ()
    highest: float = 1.0  # score of a regression, which starts at 0

    @property
    def parts(self) -> list[str]:
        return [f"input{i}" for i in range(self.inputs)]

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.labels, IGNORE) if self.kind == "tagging" else self.labels


def classes(*labels: str, inputs: int = 1) -> Shape:
    return Shape("classification", inputs, labels)


def choice(options: int) -> Shape:
    return Shape("choice", options + 1, tuple(map(str, range(options))))


def tagging(kinds: Iterable[str]) -> Shape:
    """Tags that begin and continue entities of these kinds."""
    return Shape("tagging", 1, ("O", *sorted(f"{x}-{kind}" for x in "BI" for kind in kinds)))


@dataclass
class Figures:
    """What became of one split."""

    read: int = 0
    kept: int = 0
    labelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    shortened: int = 0
    too_long: int = 0
    unwritable: int = 0


def examples(
    rows: Iterable[Any], make: Callable[[Any], Example | str], shape: Shape, lowercase: bool
) -> Iterator[Checked | str]:
    """Rows as checked examples; a text in place of an example is the reason to drop the row."""
    for row in rows:
        try:
            found = make(row)
            yield found if isinstance(found, str) else _checked(found, shape, lowercase)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            yield "row without the fields of an example"


def _checked(example: Example, shape: Shape, lowercase: bool) -> Checked | str:
    """Texts without needless spaces and a label as it is written, or the reason to drop them."""
    texts, label = [" ".join(text.replace("\0", "").split()) for text in example[0]], example[1]
    if not all(texts):
        return "empty text"
    if lowercase:
        texts = [text.lower() for text in texts]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return "half a character"  # a lone surrogate, which JSON can hold
    if shape.kind == "tagging":
        known = set(label) <= set(shape.labels)
        return ([" ".join(texts)], " ".join(label)) if known else "unknown tag"
    if len(texts) != shape.inputs:
        return "wrong number of texts"
    if label is None:
        return texts, None
    if shape.kind == "regression":
        score = _score(label, shape.highest)
        return "score that is no number in its range" if score is None else (texts, score)
    return (texts, label) if label in shape.labels else "unknown label"


def _score(label: str, highest: float) -> str | None:
    try:
        score = float(label) / highest
    except ValueError:
        return None
    return f"{score:.6g}" if 0 <= score <= 1 else None


def write_text(split: str, found: Iterable[Checked | str], shape: Shape, folder: Path) -> Figures:
    """The usable examples of a split as SPLIT.input0 ... and SPLIT.label, one a line."""
    figures = Figures()
    with overlap.writers(folder / split, [*shape.parts, "label"]) as files:
        for example in tqdm(found, f"{split}: reading", leave=False, disable=None):
            figures.read += 1
            if isinstance(example, str):
                figures.dropped[example] += 1
                continue
            texts, label = example
            overlap.write(files, [f"{line}\n" for line in (*texts, label or "")])
            figures.kept += 1
            figures.labelled += label is not None
            if shape.labels and label is not None:
                figures.labels.update(label.split() if shape.kind == "tagging" else [label])
    if not figures.kept:
        why = ", ".join(f"{n} {reason}" for reason, n in figures.dropped.items()) or "none was read"
        raise PrepError(f"the {split} set has no example left: {why}")
    _check_labels(split, figures, folder)
    return figures


def _check_labels(split: str, figures: Figures, folder: Path) -> None:
    if not figures.labelled and split != "train":
        (folder / f"{split}.label").unlink()
    elif figures.labelled < figures.kept:
        bare = figures.kept - figures.labelled
        raise PrepError(f"the {split} set has {bare} examples without label among {figures.kept}")
