"""Chooses the answer to a question from the scores of all windows of its context.

The score of the span from token i to token j is start_i + end_j. A token that several windows
contain starts an answer only in the window where it has the most context on both sides. The score
of no answer is the lowest one of the windows (Devlin et al. 2019, §4.3).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import utils

from ..core.errors import InputError
from ..core.json_input import parse_json
from ..tasks.span_labels import WindowScores
from .json_shape import ShapeError, integer, list_of, optional, table, text

_CONTEXT = table({"text": text, "starts": list_of(integer), "ends": list_of(integer)})
_QUESTION = table(
    {"id": text, "context": integer, "windows": list_of(list_of(integer), least=1)},
    {"answers": optional(list_of(text)), "question": text},
)


@dataclass(frozen=True)
class Context:
    """A paragraph, and the characters that each of its tokens covers."""

    text: str
    starts: list[int]
    ends: list[int]

    def span(self, first: int, last: int) -> str:
        """The original text from the first to the last of these tokens."""
        return self.text[self.starts[first] : self.ends[last]].strip()


@dataclass(frozen=True)
class Question:
    """A question with its windows: row of the data, first token, number of tokens."""

    id: str
    context: Context
    windows: tuple[tuple[int, int, int], ...]
    answers: tuple[str, ...] | None  # None in a set without answers


@dataclass(frozen=True)
class Candidate:
    """A possible answer. Its score is a sum of two logits."""

    text: str
    score: float


@dataclass(frozen=True)
class Decision:
    """The best answers to a question, best first, and the score of giving none."""

    candidates: list[Candidate]
    no_answer_score: float

    @property
    def answer(self) -> str:
        """The best answer; the empty text if the context has no token."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def no_answer(self) -> float:
        """The probability of no answer against the best answer."""
        if not self.candidates:
            return 1.0
        difference = self.no_answer_score - self.candidates[0].score
        return 1 / (1 + math.exp(min(-difference, 700)))


def read_questions(data: str, subset: str) -> list[Question]:
    """The questions of a split, in their order; ``InputError`` if their files are damaged."""
    folder = Path(utils.split_paths(data)[0]) / "questions"
    contexts = [
        Context(row["text"], row["starts"], row["ends"])
        for row in _rows(folder / f"{subset}.contexts.jsonl", _CONTEXT)
    ]
    path = folder / f"{subset}.jsonl"
    questions = [_question(path, row, contexts) for row in _rows(path, _QUESTION)]
    if not questions:
        raise InputError(f"{path} has no questions")
    return questions


def _question(path: Path, row: dict[str, Any], contexts: Sequence[Context]) -> Question:
    number, windows = row["context"], tuple(map(tuple, row["windows"]))
    if not 0 <= number < len(contexts):
        raise InputError(f"{path} is damaged: there is no context {number}")
    context = contexts[number]
    length = min(len(context.starts), len(context.ends))
    for window in windows:
        if len(window) != 3 or min(window) < 0 or window[1] + window[2] > length:
            raise InputError(f"{path} is damaged: question {row['id']} has a wrong window")
    answers = row.get("answers")
    return Question(row["id"], context, windows, None if answers is None else tuple(answers))


def _rows(path: Path, shape: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one per line."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; stochattn-prepare squad writes it")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = parse_json(line)
                shape(row, "")
            except (ValueError, ShapeError) as error:
                raise InputError(f"{path}, line {number}: {error}") from None
            yield row


def decide(
    question: Question, scores: Mapping[int, WindowScores], best: int, longest: int
) -> Decision:
    """The ``best`` answers of at most ``longest`` tokens, from the scores of every row."""
    found: dict[str, float] = {}
    most = most_context(question.windows)
    for window, owned in zip(question.windows, most, strict=True):
        row, first, count = window
        if row not in scores or len(scores[row].start) != count:
            raise InputError(f"the windows of question {question.id} do not fit the data")
        for score, start, end in best_spans(scores[row], owned, best, longest):
            text = question.context.span(first + start, first + end)
            if text:
                found[text] = max(score, found.get(text, -math.inf))
    ordered = sorted(found.items(), key=lambda item: -item[1])[:best]
    lowest = min(scores[row].no_answer for row, _, _ in question.windows)
    return Decision([Candidate(*item) for item in ordered], lowest)


def most_context(windows: Sequence[tuple[int, int, int]]) -> list[np.ndarray]:
    """For each window, whether each of its tokens has more context there than in the others.

    The context of a token is the smaller one of the numbers of tokens before and after it; among
    equal ones the longer window, then the earlier one.
    """
    length = max(first + count for _, first, count in windows)
    context = np.full((len(windows), length), -1.0)
    for number, (_, first, count) in enumerate(windows):
        place = np.arange(count)
        context[number, first : first + count] = np.minimum(place, place[::-1]) + 0.01 * count
    owner = context.argmax(axis=0) if length else np.zeros(0, dtype=int)
    return [
        owner[first : first + count] == number for number, (_, first, count) in enumerate(windows)
    ]


def best_spans(
    scores: WindowScores, owned: np.ndarray, best: int, longest: int
) -> list[tuple[float, int, int]]:
    """The ``best`` spans (score, start, end) of at most ``longest`` tokens, best first.

    ``owned`` (n,) marks the tokens that may start an answer in this window.
    """
    n = len(scores.start)
    if n == 0:
        return []
    width = min(longest, n)
    padded = np.concatenate([scores.end, np.full(width - 1, -np.inf)])
    ends = np.lib.stride_tricks.sliding_window_view(padded, width)  # (n, width)
    total = np.where(owned, scores.start, -np.inf)[:, None] + ends
    flat = total.ravel()
    count = min(best, flat.size)
    chosen = np.argpartition(-flat, count - 1)[:count]
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
    return [
        (float(flat[x]), int(x // width), int(x // width + x % width))
        for x in chosen
        if flat[x] > -np.inf
    ]


def predictions(decisions: Mapping[str, Decision], threshold: float | None) -> dict[str, str]:
    """The answer to every question, empty where no answer is more probable than ``threshold``.

    Without a threshold every question is answered.
    """
    return {
        key: "" if threshold is not None and decision.no_answer > threshold else decision.answer
        for key, decision in decisions.items()
    }


def has_no_answers(data: str) -> bool:
    """Whether the training data has questions without an answer, by its manifest."""
    path = Path(utils.split_paths(data)[0]) / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return bool(manifest.get("no_answer", True)) if isinstance(manifest, dict) else True
