"""Exact match, F1 and thresholds of SQuAD on cases that were worked out by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from fairseq_stochattn.analysis.squad_metrics import (
    MEASURES,
    best_score,
    best_threshold,
    exact_match,
    f1,
    normalized,
    scores,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Norman  Conquest.", "norman conquest"),
        ("a an the", ""),
        ("An apple, a day", "apple day"),
        ("Theatre anthem", "theatre anthem"),  # articles only as whole words
        ("$1,000.50", "100050"),  # punctuation is removed, not replaced by a space
        ("well-known", "wellknown"),
        ("the-end", "theend"),  # so an article before a hyphen is no longer a word
        ("«Élan»", "«élan»"),  # only ASCII punctuation
        ("\tlots\n of   space ", "lots of space"),
        ("", ""),
    ],
)
def test_normalized_form(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "expected"),
    [
        ("the 10th century", "10th century", 1, 1),
        ("10th and 11th centuries", "10th century", 0, 2 * (1 / 2) * (1 / 4) / (1 / 2 + 1 / 4)),
        ("to be or not to be", "to be", 0, 2 * 1 * (2 / 6) / (1 + 2 / 6)),
        ("to be", "to to be", 0, 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # a repeated word counts once
        ("Paris", "London", 0, 0),
        ("", "", 1, 1),
        ("", "Paris", 0, 0),
        ("Paris", "", 0, 0),
        ("the", "", 1, 1),  # an answer of articles alone has no words
    ],
)
def test_one_answer(gold: str, predicted: str, exact: float, expected: float) -> None:
    assert exact_match(gold, predicted) == exact
    assert f1(gold, predicted) == pytest.approx(expected)


def test_the_best_of_several_answers_counts() -> None:
    answers = ("in 1998", "1998", "the year 1998")
    assert best_score(exact_match, answers, "1998") == 1
    assert best_score(f1, answers, "late 1998") == pytest.approx(2 * 0.5 * 1 / 1.5)
    # An answer without words does not count beside others, and stands for no answer alone.
    assert best_score(exact_match, ("the", "Paris"), "") == 0
    assert best_score(exact_match, ("the",), "") == 1


def test_scores_of_a_set() -> None:
    gold = {"a": ("Paris",), "b": ("a red car", "car"), "c": (), "d": (), "e": ("x",)}
    predicted = {"a": "paris.", "b": "red", "c": "", "d": "something"}  # none for e
    found = scores(gold, predicted)
    assert found == pytest.approx(
        {
            "exact": 2 / 5,
            "f1": (1 + 2 / 3 + 1 + 0 + 0) / 5,
            "has_answer_exact": 1 / 3,
            "has_answer_f1": (1 + 2 / 3) / 3,
            "no_answer_exact": 1 / 2,
            "no_answer_f1": 1 / 2,
        }
    )
    answerable = {key: gold[key] for key in "ab"}
    assert scores(answerable, predicted) == pytest.approx({"exact": 1 / 2, "f1": 5 / 6})


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_against_all_thresholds(measure: str, seed: int) -> None:
    """It equals the best of all thresholds, each applied by its definition."""
    rng = random.Random(seed)
    words = ["x", "y", "x y", "z"]
    keys = [str(number) for number in range(12)]
    gold = {key: tuple(rng.sample(words, rng.randint(0, 2))) for key in keys}
    answers = {key: rng.choice(words) for key in keys}
    no_answer = {key: rng.choice([0.1, 0.2, 0.5, 0.7, 0.9]) for key in keys}  # with ties

    def score(threshold: float) -> float:
        texts = (answers[key] if no_answer[key] <= threshold else "" for key in keys)
        values = [
            best_score(MEASURES[measure], gold[key], text)
            for key, text in zip(keys, texts, strict=True)
        ]
        return sum(values) / len(keys)

    found = best_threshold(MEASURES[measure], gold, answers, no_answer)
    assert found.score == pytest.approx(score(found.value))
    assert found.score == pytest.approx(max(map(score, [-1, *no_answer.values()])))


def test_f1_is_symmetric_and_bounded() -> None:
    texts = [" ".join(x) for n in (1, 2, 3) for x in itertools.product("uvw", repeat=n)]
    for left, right in itertools.product(texts, texts):
        assert f1(left, right) == f1(right, left)
        assert exact_match(left, right) <= f1(left, right) <= 1
