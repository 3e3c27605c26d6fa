"""Check labelled examples and write their text to files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import overlap
from steps.errors import PrepError

IGNORE = "<ignore>"  # the tag of every subword of a word except the first
Label = str | list[str] | None
Example = tuple[Iterable[str], Label]  # texts and label
CheckedExample = tuple[list[str], str | None]


@dataclass(frozen=True)
class TaskSpec:
    """The parts of one example of a task; classes are numbered in the order of ``labels``."""

    kind: str  # classification, regression, choice or tagging
    inputs: int = 1  # number of texts
    labels: tuple[str, ...] = ()
    highest: float = 1.0  # highest score of a regression; the lowest is 0
    keep_end: bool = False  # a long first text loses its beginning: its end is a question

    @property
    def parts(self) -> list[str]:
        return [f"input{i}" for i in range(self.inputs)]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The entries of the dictionary of the labels."""
        return (*self.labels, IGNORE) if self.kind == "tagging" else self.labels


def classification(*labels: str, inputs: int = 1) -> TaskSpec:
    """Return the spec of a classification task."""
    return TaskSpec("classification", inputs, labels)


def multiple_choice(options: int) -> TaskSpec:
    """Return the spec of a task with one context and several options."""
    return TaskSpec("choice", options + 1, tuple(map(str, range(options))))


def tagging(entity_types: Iterable[str]) -> TaskSpec:
    """Return the spec of a tagging task with the tags O, B-TYPE and I-TYPE."""
    tags = sorted(f"{prefix}-{name}" for prefix in "BI" for name in entity_types)
    return TaskSpec("tagging", 1, ("O", *tags))


@dataclass
class SplitStats:
    """Counts of the examples of one split."""

    read: int = 0
    kept: int = 0
    labelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    shortened: int = 0  # truncated single texts
    too_long: int = 0  # truncated pairs
    unwritable: int = 0  # words or texts for which the subword model has no symbols


def check_examples(
    rows: Iterable[Any], convert: Callable[[Any], Example | str], spec: TaskSpec, lowercase: bool
) -> Iterator[CheckedExample | str]:
    """For each row, yield the checked example, or the reason (a string) for dropping the row.

    ``convert`` returns an example, or a string with the reason for dropping the row.
    """
    for row in rows:
        try:
            example = convert(row)
            yield example if isinstance(example, str) else _check(example, spec, lowercase)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            yield "row without the fields of an example"


def _check(example: Example, spec: TaskSpec, lowercase: bool) -> CheckedExample | str:
    """Return the texts with single spaces and the label as text, or a reason to drop the row."""
    texts, label = [" ".join(text.replace("\0", "").split()) for text in example[0]], example[1]
    if not all(texts):
        return "empty text"
    if lowercase:
        texts = [text.lower() for text in texts]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return "half a character"  # a lone surrogate, which JSON can contain
    if spec.kind == "tagging":
        valid = set(label) <= set(spec.labels)
        return ([" ".join(texts)], " ".join(label)) if valid else "unknown tag"
    if len(texts) != spec.inputs:
        return "wrong number of texts"
    if label is None:
        return texts, None
    if spec.kind == "regression":
        score = _scaled_score(label, spec.highest)
        return "score that is no number in its range" if score is None else (texts, score)
    return (texts, label) if label in spec.labels else "unknown label"


def _scaled_score(label: str, highest: float) -> str | None:
    try:
        score = float(label) / highest
    except ValueError:
        return None
    return f"{score:.6g}" if 0 <= score <= 1 else None


def write_text(
    split: str, examples: Iterable[CheckedExample | str], spec: TaskSpec, folder: Path
) -> SplitStats:
    """Write the examples of a split to SPLIT.input0, … and SPLIT.label, one per line."""
    stats = SplitStats()
    with overlap.open_writers(folder / split, [*spec.parts, "label"]) as files:
        for example in tqdm(examples, f"{split}: reading", leave=False, disable=None):
            stats.read += 1
            if isinstance(example, str):
                stats.dropped[example] += 1
                continue
            texts, label = example
            overlap.write_lines(files, [f"{line}\n" for line in (*texts, label or "")])
            stats.kept += 1
            stats.labelled += label is not None
            if spec.labels and label is not None:
                stats.labels.update(label.split() if spec.kind == "tagging" else [label])
    if not stats.kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in stats.dropped.items())
        raise PrepError(f"the {split} set has no usable example: {reasons or 'no row was read'}")
    _check_labels(split, stats, folder)
    return stats


def _check_labels(split: str, stats: SplitStats, folder: Path) -> None:
    if not stats.labelled and split != "train":
        (folder / f"{split}.label").unlink()
    elif stats.labelled < stats.kept:
        missing = stats.kept - stats.labelled
        raise PrepError(f"{missing} of the {stats.kept} examples of the {split} set have no label")
