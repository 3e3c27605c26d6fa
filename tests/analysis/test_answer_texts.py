"""Answers from the scores of windows: spans by brute force, windows, no answer, damaged files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fairseq_stochattn.analysis.answer_report import Answered, candidates
from fairseq_stochattn.analysis.answer_texts import (
    Context,
    Question,
    best_spans,
    decide,
    most_context,
    predictions,
    read_questions,
)
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.tasks.span_labels import WindowScores

TEXT = "The  Normans (c. 911) came from Denmark."
CONTEXT = Context(TEXT, [0, 5, 13, 22, 27, 32, 39], [3, 12, 21, 26, 31, 39, 40])


def window(rng: np.random.Generator, count: int, no_answer: float = 0.0) -> WindowScores:
    return WindowScores(rng.normal(size=count), rng.normal(size=count), no_answer)


@pytest.mark.parametrize("longest", [1, 3, 50])
def test_best_spans_are_those_of_a_full_search(longest: int) -> None:
    rng = np.random.default_rng(longest)
    scores = window(rng, 17)
    owned = rng.random(17) < 0.7
    every = sorted(
        (
            (scores.start[i] + scores.end[j], i, j)
            for i in range(17)
            for j in range(i, min(17, i + longest))
            if owned[i]
        ),
        reverse=True,
    )
    found = best_spans(scores, owned, 6, longest)
    assert [(i, j) for _, i, j in found] == [(i, j) for _, i, j in every[:6]]
    assert [x for x, _, _ in found] == pytest.approx([x for x, _, _ in every[:6]])


def test_a_token_belongs_to_the_window_with_most_context() -> None:
    windows = [(0, 0, 10), (1, 5, 10), (2, 10, 3)]
    owned = most_context(windows)
    for token in range(13):
        places = [
            (min(token - first, first + count - 1 - token) + 0.01 * count, -number)
            for number, (_, first, count) in enumerate(windows)
            if first <= token < first + count
        ]
        owner = -max(places)[1]
        marked = [
            number
            for number, (_, first, count) in enumerate(windows)
            if first <= token < first + count and owned[number][token - first]
        ]
        assert marked == [owner]


def test_the_answer_is_cut_from_the_original_text() -> None:
    start, end = np.zeros(7), np.zeros(7)
    start[1] = end[2] = 5.0
    decision = decide(
        Question("q", CONTEXT, ((0, 0, 7),), ()), {0: WindowScores(start, end, 3.0)}, 20, 30
    )
    assert decision.answer == "Normans (c. 911)"
    assert decision.candidates[0].score == 10
    assert decision.no_answer == pytest.approx(1 / (1 + math.exp(7)))


def test_windows_of_a_long_context_are_compared() -> None:
    """The answer comes from the best window; no answer has the lowest score of all windows."""
    first = WindowScores(np.array([1.0, 0, 0, 0]), np.array([1.0, 0, 0, 0]), 9.0)
    second = WindowScores(np.array([0, 0, 0, 4.0]), np.array([0, 0, 0, 4.0]), 2.0)
    question = Question("q", CONTEXT, ((7, 0, 4), (8, 3, 4)), ("Denmark",))
    decision = decide(question, {7: first, 8: second}, 20, 30)
    assert decision.answer == "."
    assert decision.no_answer_score == 2
    found = Answered([question], {"q": decision})
    assert predictions(found.decisions, None) == {"q": "."}
    # 1 / (1 + e^(8 − 2)) is the probability of no answer.
    assert predictions(found.decisions, 0.01) == {"q": "."}
    assert predictions(found.decisions, 0.001) == {"q": ""}
    rows = json.loads(candidates(found))["q"]
    assert sum(row["probability"] for row in rows) == pytest.approx(1, abs=1e-5)
    assert rows[0]["text"] == "."
    assert rows[-1] == {"text": "", "score": 2.0, "probability": rows[-1]["probability"]}


def test_a_context_without_tokens_has_no_answer() -> None:
    nothing = WindowScores(np.zeros(0), np.zeros(0), -5.0)
    decision = decide(Question("q", Context("", [], []), ((0, 0, 0),), ()), {0: nothing}, 20, 30)
    assert (decision.answer, decision.no_answer) == ("", 1.0)


def test_equal_texts_are_one_candidate() -> None:
    context = Context("x y x", [0, 2, 4], [1, 3, 5])
    scores = WindowScores(np.array([1.0, 0, 2]), np.array([1.0, 0, 2]), 0.0)
    decision = decide(Question("q", context, ((0, 0, 3),), ()), {0: scores}, 20, 1)
    assert [x.text for x in decision.candidates] == ["x", "y"]
    assert decision.candidates[0].score == 4


GOOD = {"id": "q", "context": 0, "windows": [[0, 0, 2]], "answers": ["x"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 1: is not JSON"),
        ({**GOOD, "context": 1}, "no context 1"),
        ({**GOOD, "windows": [[0, 0, 3]]}, "wrong window"),
        ({**GOOD, "windows": []}, "windows has 0 entries"),
        ({**GOOD, "id": 7}, "id is not a text"),
        ("", "has no questions"),
    ],
)
def test_damaged_questions(row: object, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "questions"
    folder.mkdir()
    context = {"text": "x y", "starts": [0, 2], "ends": [1, 3]}
    (folder / "valid.contexts.jsonl").write_text(json.dumps(context) + "\n")
    line = row if isinstance(row, str) else json.dumps(row)
    (folder / "valid.jsonl").write_text(line)
    with pytest.raises(InputError, match=message):
        read_questions(str(tmp_path), "valid")
    (folder / "valid.jsonl").write_text(json.dumps(GOOD))
    (question,) = read_questions(str(tmp_path), "valid")
    assert question.context.span(0, 1) == "x y"
    with pytest.raises(InputError, match="do not fit the data"):
        decide(question, {}, 20, 30)
    with pytest.raises(InputError, match="does not exist"):
        read_questions(str(tmp_path), "test")
