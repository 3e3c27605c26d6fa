"""Scores the answers to all questions of a split, and writes SQuAD's official prediction files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks.labels import DIGITS, Prediction
from .answer_texts import Decision, Question, decide, predictions, read_questions
from .squad_metrics import MEASURES, best_threshold, scores


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are chosen."""

    best: int = 20  # number of candidates that are kept per window and per question
    longest: int = 30  # largest number of tokens of an answer


@dataclass(frozen=True)
class Answered:
    """The questions of a split and the decisions about them."""

    questions: Sequence[Question]
    decisions: Mapping[str, Decision]

    @property
    def gold(self) -> dict[str, tuple[str, ...]] | None:
        """The correct answers by question; None if those of a question are not known."""
        if any(question.answers is None for question in self.questions):
            return None
        return {question.id: question.answers for question in self.questions}

    def threshold(self, measure: str) -> tuple[float, float] | None:
        """The best threshold for no answer and its score; None without the correct answers."""
        if self.gold is None:
            return None
        answers = {key: decision.answer for key, decision in self.decisions.items()}
        no_answer = {key: decision.no_answer for key, decision in self.decisions.items()}
        found = best_threshold(MEASURES[measure], self.gold, answers, no_answer)
        return found.value, found.score

    def metrics(self, threshold: float | None) -> dict[str, float]:
        """EM and F1 in percent, and thresholds; empty without the correct answers.

        Without a ``threshold`` every question is answered, and no threshold is reported.
        """
        gold = self.gold
        if gold is None:
            return {}
        measured = scores(gold, predictions(self.decisions, threshold))
        result = {name: round(100 * value, 2) for name, value in measured.items()}
        if threshold is None:
            return result
        silent = float(np.mean([not answers for answers in gold.values()]))
        result["always_no_answer"] = round(100 * silent, 2)
        result["threshold"] = round(threshold, DIGITS)
        for name in MEASURES:
            value, score = self.threshold(name)
            result |= {f"best_{name}": round(100 * score, 2), f"best_{name}_threshold": value}
        return result


def answered(
    data: str, subset: str, rows: Sequence[Prediction], settings: AnswerSettings
) -> Answered:
    """Decide about every question of a split, given the predictions for its windows."""
    questions = read_questions(data, subset)
    by_row = {row.id: row.prediction for row in rows}
    decisions = {
        question.id: decide(question, by_row, settings.best, settings.longest)
        for question in questions
    }
    return Answered(questions, decisions)


def official(found: Answered, threshold: float | None) -> str:
    """The official prediction file: a JSON object from question id to answer."""
    return _json(predictions(found.decisions, threshold))


def no_answer_probabilities(found: Answered) -> str:
    """The official file of no-answer probabilities: a JSON object from question id to number."""
    return _json({key: round(x.no_answer, DIGITS) for key, x in found.decisions.items()})


def candidates(found: Answered) -> str:
    """A JSON object from question id to the best answers, each with score and probability.

    The probabilities of a question's candidates and of no answer, the empty text, sum to 1.
    """
    return _json({key: _candidates(decision) for key, decision in found.decisions.items()})


def _candidates(decision: Decision) -> list[dict[str, Any]]:
    rows = [(x.text, x.score) for x in decision.candidates] + [("", decision.no_answer_score)]
    logits = np.array([score for _, score in rows])
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return [
        {"text": text, "score": round(score, DIGITS), "probability": round(float(x), DIGITS)}
        for (text, score), x in zip(rows, p, strict=True)
    ]


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def write(path: Path | None, content: str) -> None:
    """Write a file that ``atomic_file`` opened, or nothing without a path."""
    if path is not None:
        path.write_text(content, encoding="utf-8")
