"""Metrics for predictions: the metrics of GLUE, and the F1 score of entities. 1 is the best value.

Standard metrics are computed by scikit-learn and scipy. A span is a sequence of words that forms an
entity of some kind. Spans are read from BIO tags by the rules of conlleval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.optional import optional_import

Span = tuple[str, int, int]  # kind, index of the first word, index after the last word


def classification(
    gold: Sequence[str], predicted: Sequence[str], classes: Sequence[str]
) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation, of which GLUE reports one or two for each task.

    With two classes, F1 is computed for the positive class, which is the class named ``1``, or the
    second class if none has this name. With more classes, it is the mean over the classes
    (``macro_f1``).
    """
    sklearn = optional_import("sklearn.metrics", "metrics")
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
    """Pearson's and Spearman's correlation, NaN if all gold or all predicted values are equal."""
    scipy = optional_import("scipy.stats", "metrics")
    return {
        "pearson": float(scipy.pearsonr(gold, predicted)[0]),
        "spearman": float(scipy.spearmanr(gold, predicted)[0]),
    }


def choice(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
    """The accuracy of choices, given as indices."""
    return {
        "accuracy": float(
            optional_import("sklearn.metrics", "metrics").accuracy_score(gold, predicted)
        )
    }


def tagging(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """The accuracy of the tags and, for BIO tags, precision, recall and F1 of the spans."""
    flat = [[tag for tags in sentences for tag in tags] for sentences in (gold, predicted)]
    scores = {
        "accuracy": float(optional_import("sklearn.metrics", "metrics").accuracy_score(*flat))
    }
    if marks_spans(flat[0]):
        counts = count_spans(gold, predicted)
        scores |= {"precision": counts.precision, "recall": counts.recall, "f1": counts.f1}
    return scores


def marks_spans(tags: Iterable[str]) -> bool:
    """Whether the tags are BIO tags, which mark spans."""
    return any(tag.startswith("B-") for tag in tags)


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of a sentence. B- starts a span; I- continues a span of its kind or starts one."""
    found: set[Span] = set()
    kind, first = None, 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, named = tag.partition("-")
        current = named if prefix in ("B", "I") else None
        if kind is not None and (prefix == "B" or current != kind):
            found.add((kind, first, position))
            kind = None
        if kind is None and current is not None:
            kind, first = current, position
    return found


@dataclass(frozen=True)
class SpanCounts:
    """The numbers of spans in a corpus."""

    right: int  # predicted spans whose ends and kind agree with a gold span
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
    """Count the spans of all sentences, which are given as tags."""
    pairs = [(spans(x), spans(y)) for x, y in zip(gold, predicted, strict=True)]
    return SpanCounts(
        right=sum(len(x & y) for x, y in pairs),
        predicted=sum(len(y) for _, y in pairs),
        gold=sum(len(x) for x, _ in pairs),
    )
