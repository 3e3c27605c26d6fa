"""How good predictions are: GLUE's metrics and the F1 of entities. Pure functions, fractions of 1.

What scikit-learn and scipy have is theirs; the spans of BIO tags are read by conlleval's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fairseq_stochattn.errors import UsageError

Span = tuple[str, int, int]  # kind, first word, the word behind the last


def classification(
    gold: Sequence[str], predicted: Sequence[str], classes: Sequence[str]
) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation, of which GLUE takes one or two for each task.

    F1 is that of the positive class of two, ``1`` or else the second; of more, their mean.
    """
    sklearn = library("sklearn.metrics")
    if len(classes) == 2:
        positive = "1" if "1" in classes else classes[1]
        options, name = {"pos_label": positive, "average": "binary"}, "f1"
    else:
        options, name = {"average": "macro"}, "macro_f1"
    return {
        "accuracy": float(sklearn.accuracy_score(gold, predicted)),
        name: float(sklearn.f1_score(gold, predicted, zero_division=0.0, **options)),
        "matthews": float(sklearn.matthews_corrcoef(gold, predicted)),
    }


def regression(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """The correlations of Pearson and Spearman; NaN where one side never changes."""
    scipy = library("scipy.stats")
    return {
        "pearson": float(scipy.pearsonr(gold, predicted)[0]),
        "spearman": float(scipy.spearmanr(gold, predicted)[0]),
    }


def choice(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
    return {"accuracy": float(library("sklearn.metrics").accuracy_score(gold, predicted))}


def tagging(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Accuracy of the tags; precision, recall and F1 of the spans where tags begin some."""
    flat = [[tag for tags in sentences for tag in tags] for sentences in (gold, predicted)]
    found = {"accuracy": float(library("sklearn.metrics").accuracy_score(*flat))}
    if marks_spans(flat[0]):
        counts = count_spans(gold, predicted)
        found |= {"precision": counts.precision, "recall": counts.recall, "f1": counts.f1}
    return found


def marks_spans(tags: Iterable[str]) -> bool:
    """Whether these are tags of entities rather than, say, parts of speech."""
    return any(tag.startswith("B-") for tag in tags)


def spans(tags: Sequence[str]) -> set[Span]:
    """The entities of a sentence: B- opens one, and I- too unless one of its kind goes on."""
    found: set[Span] = set()
    kind, first = None, 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, named = tag.partition("-")
        now = named if prefix in ("B", "I") else None
        if kind is not None and (prefix == "B" or now != kind):
            found.add((kind, first, position))
            kind = None
        if kind is None and now is not None:
            kind, first = now, position
    return found


@dataclass(frozen=True)
class SpanCounts:
    """Entities of a corpus: right in both ends and in kind, predicted, and annotated."""

    right: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        return self.right / max(1, self.predicted)

    @property
    def recall(self) -> float:
        return self.right / max(1, self.gold)

    @property
    def f1(self) -> float:
        return 2 * self.right / max(1, self.predicted + self.gold)


def count_spans(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> SpanCounts:
    pairs = [(spans(x), spans(y)) for x, y in zip(gold, predicted, strict=True)]
    return SpanCounts(
        right=sum(len(x & y) for x, y in pairs),
        predicted=sum(len(y) for _, y in pairs),
        gold=sum(len(x) for x, _ in pairs),
    )


def library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(
            f"metrics need {name.split('.')[0]}: pip install 'fairseq_stochattn[analysis]'"
        ) from None
