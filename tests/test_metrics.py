"""Metrics: the spans of tags by hand and by conlleval's table, the others from their formulas."""

from __future__ import annotations

import itertools
import random
import sys

import numpy as np
import pytest

from fairseq_stochattn import metrics
from fairseq_stochattn.metrics import count_spans, spans


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-PER I-PER O", {("PER", 0, 2)}),
        ("O B-LOC", {("LOC", 1, 2)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("I-PER I-PER", {("PER", 0, 2)}),  # I- without B- opens a span
        ("O I-PER", {("PER", 1, 2)}),
        ("B-PER I-LOC", {("PER", 0, 1), ("LOC", 1, 2)}),  # of another kind: a new one
        ("I-PER B-PER I-PER", {("PER", 0, 1), ("PER", 1, 3)}),
        ("B-creative-work I-creative-work", {("creative-work", 0, 2)}),
        ("B-PER O I-PER", {("PER", 0, 1), ("PER", 2, 3)}),
    ],
)
def test_spans(tags: str, expected: set) -> None:
    assert spans(tags.split()) == expected


def starts(before: str, tag: str) -> bool:
    """conlleval's startOfChunk, its rules for B, I and O one by one."""
    kinds = [x.partition("-")[2] for x in (before, tag)]
    rules = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
    return (before[0], tag[0]) in rules or (tag != "O" and kinds[0] != kinds[1])


def ends(before: str, tag: str) -> bool:
    """conlleval's endOfChunk."""
    kinds = [x.partition("-")[2] for x in (before, tag)]
    rules = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
    return (before[0], tag[0]) in rules or (before != "O" and kinds[0] != kinds[1])


def test_spans_are_conllevals_for_all_short_sentences() -> None:
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
    predicted = [["B-PER", "O", "O"], ["I-LOC"], ["O", "B-ORG"]]  # too short; right; invented
    counts = count_spans(gold, predicted)
    assert (counts.right, counts.predicted, counts.gold) == (1, 3, 2)
    assert counts.precision == pytest.approx(1 / 3)
    assert counts.recall == pytest.approx(1 / 2)
    assert counts.f1 == pytest.approx(0.4)
    found = metrics.tagging(gold, predicted)
    assert found == pytest.approx({"accuracy": 3 / 6, "precision": 1 / 3, "recall": 0.5, "f1": 0.4})


def test_without_spans_everything_is_zero_and_parts_of_speech_have_none() -> None:
    counts = count_spans([["O"]], [["O"]])
    assert (counts.precision, counts.recall, counts.f1) == (0, 0, 0)
    assert metrics.tagging([["NOUN", "VERB"]], [["NOUN", "NOUN"]]) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="zip"):
        count_spans([["O"]], [])


@pytest.mark.parametrize("classes", [("0", "1"), ("1", "0"), ("no", "yes")])
def test_two_classes_by_their_table(classes: tuple[str, str]) -> None:
    """F1 and Matthews from the four counts; 1 is positive wherever the dictionary has it."""
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


def test_more_classes_have_a_mean_f1() -> None:
    gold, predicted = list("aabbcc"), list("abbbcd")
    found = metrics.classification(gold, predicted, "abcd")
    by_class = [2 / 3, 4 / 5, 2 / 3, 0.0]
    assert found["macro_f1"] == pytest.approx(sum(by_class) / 4)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert metrics.choice([0, 1, 2], [0, 1, 1]) == pytest.approx({"accuracy": 2 / 3})


def test_correlations() -> None:
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


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(SystemExit, match=r"sklearn: pip install 'fairseq_stochattn\[analysis\]'"):
        metrics.choice([1], [1])
