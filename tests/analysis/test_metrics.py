"""Spans of BIO tags follow the rules of conlleval, and metrics equal their formulas."""

from __future__ import annotations

import itertools
import random
import sys

import numpy as np
import pytest

from fairseq_stochattn.analysis import metrics
from fairseq_stochattn.analysis.metrics import count_spans, spans
from fairseq_stochattn.core.errors import InputError


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-PER I-PER O", {("PER", 0, 2)}),
        ("O B-LOC", {("LOC", 1, 2)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("I-PER I-PER", {("PER", 0, 2)}),  # I- without B- starts a span
        ("O I-PER", {("PER", 1, 2)}),
        ("B-PER I-LOC", {("PER", 0, 1), ("LOC", 1, 2)}),  # another kind starts a new span
        ("I-PER B-PER I-PER", {("PER", 0, 1), ("PER", 1, 3)}),
        ("B-creative-work I-creative-work", {("creative-work", 0, 2)}),
        ("B-PER O I-PER", {("PER", 0, 1), ("PER", 2, 3)}),
    ],
)
def test_spans(tags: str, expected: set) -> None:
    assert spans(tags.split()) == expected


def starts(before: str, tag: str) -> bool:
    """Whether a span starts at ``tag``, which follows ``before`` (startOfChunk in conlleval)."""
    kinds = [x.partition("-")[2] for x in (before, tag)]
    rules = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
    return (before[0], tag[0]) in rules or (tag != "O" and kinds[0] != kinds[1])


def ends(before: str, tag: str) -> bool:
    """Whether a span ends between ``before`` and ``tag`` (endOfChunk in conlleval)."""
    kinds = [x.partition("-")[2] for x in (before, tag)]
    rules = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
    return (before[0], tag[0]) in rules or (before != "O" and kinds[0] != kinds[1])


def test_spans_equal_conlleval_for_all_sentences_of_five_tags() -> None:
    for tags in itertools.product(("O", "B-X", "I-X", "B-Y", "I-Y"), repeat=5):
        padded = ["O", *tags, "O"]
        found, first = set(), 0
        for i, (before, tag) in enumerate(itertools.pairwise(padded)):
            if ends(before, tag):
                found.add((before[2:], first, i))
            if starts(before, tag):
                first = i
        assert spans(tags) == found, tags


def test_f1_counts_exact_spans_over_the_corpus() -> None:
    gold = [["B-PER", "I-PER", "O"], ["B-LOC"], ["O", "O"]]
    predicted = [
        ["B-PER", "O", "O"],
        ["I-LOC"],
        ["O", "B-ORG"],
    ]  # spans: too short, right, not in gold
    counts = count_spans(gold, predicted)
    assert (counts.right, counts.predicted, counts.gold) == (1, 3, 2)
    assert counts.precision == pytest.approx(1 / 3)
    assert counts.recall == pytest.approx(1 / 2)
    assert counts.f1 == pytest.approx(0.4)
    found = metrics.tagging(gold, predicted)
    assert found == pytest.approx({"accuracy": 3 / 6, "precision": 1 / 3, "recall": 0.5, "f1": 0.4})


def test_scores_without_spans_are_zero_and_parts_of_speech_have_only_accuracy() -> None:
    counts = count_spans([["O"]], [["O"]])
    assert (counts.precision, counts.recall, counts.f1) == (0, 0, 0)
    assert metrics.tagging([["NOUN", "VERB"]], [["NOUN", "NOUN"]]) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="zip"):
        count_spans([["O"]], [])


@pytest.mark.parametrize("classes", [("0", "1"), ("1", "0"), ("no", "yes")])
def test_metrics_of_two_classes_follow_from_the_confusion_matrix(classes: tuple[str, str]) -> None:
    """The positive class is 1 in either order of the classes, or else the second class."""
    rng = random.Random(0)
    gold = [rng.choice(classes) for _ in range(60)]
    predicted = [x if rng.random() < 0.7 else rng.choice(classes) for x in gold]
    positive = "yes" if "yes" in classes else "1"
    table = np.zeros((2, 2))
    for x, y in zip(gold, predicted, strict=True):
        table[int(x == positive), int(y == positive)] += 1
    (tn, fp), (fn, tp) = table
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    found = metrics.classification(gold, predicted, classes)
    assert found["accuracy"] == pytest.approx((tp + tn) / 60)
    assert found["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert found["matthews"] == pytest.approx((tp * tn - fp * fn) / product**0.5)


def test_f1_of_more_than_two_classes_is_their_mean() -> None:
    gold, predicted = list("aabbcc"), list("abbbcd")
    found = metrics.classification(gold, predicted, "abcd")
    by_class = [2 / 3, 4 / 5, 2 / 3, 0.0]
    assert found["macro_f1"] == pytest.approx(sum(by_class) / 4)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert metrics.choice([0, 1, 2], [0, 1, 1]) == pytest.approx({"accuracy": 2 / 3})


def test_correlations_equal_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    gold = rng.normal(size=50)
    predicted = gold + rng.normal(size=50)
    found = metrics.regression(gold.tolist(), predicted.tolist())
    assert found["pearson"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    ranks = [np.argsort(np.argsort(x)) for x in (gold, predicted)]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert metrics.regression([1, 2, 3], [1, 8, 27])["spearman"] == pytest.approx(1)
    with pytest.warns(RuntimeWarning, match="constant"):
        assert np.isnan(metrics.regression([1, 2, 3], [5, 5, 5])["pearson"])


def test_error_names_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    hint = r"needs scikit-learn: pip install 'fairseq_stochattn\[analysis\]'"
    with pytest.raises(InputError, match=hint):
        metrics.choice([1], [1])
