"""The official measures of SQuAD 1.1 and 2.0: exact match and F1 (Rajpurkar et al. 2016, 2018).

Answers are compared in lower case, without punctuation, articles (a, an, the) and repeated spaces.
The score of a question is the highest over its correct answers. The correct answer to a question
without one is the empty text.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Return a text in the form in which answers are compared."""
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(gold: str, predicted: str) -> float:
    """1 if the two answers are the same in normalised form, else 0."""
    return float(normalized(gold) == normalized(predicted))


def f1(gold: str, predicted: str) -> float:
    """The harmonic mean of precision and recall of the words of the prediction.

    If one of the answers has no words, it is 1 if neither has any, else 0.
    """
    expected, found = normalized(gold).split(), normalized(predicted).split()
    if not expected or not found:
        return float(expected == found)
    common = (Counter(expected) & Counter(found)).total()
    return 2 * common / (len(expected) + len(found))


def gold_answers(answers: Sequence[str]) -> list[str]:
    """The answers that are compared: those with a word; the empty text if there are none."""
    return [answer for answer in answers if normalized(answer)] or [""]


def best_score(
    measure: Callable[[str, str], float], answers: Sequence[str], predicted: str
) -> float:
    """The highest score of a prediction over the correct answers to its question."""
    return max(measure(gold, predicted) for gold in gold_answers(answers))


MEASURES = {"exact": exact_match, "f1": f1}


def scores(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> dict[str, float]:
    """Exact match and F1 as fractions of 1: of all questions, of those with and without an answer.

    ``gold`` has the correct answers to each question, none if it has no answer. A question without
    a prediction counts as wrong.
    """
    by_question = {
        name: {
            key: best_score(measure, answers, predicted[key]) if key in predicted else 0.0
            for key, answers in gold.items()
        }
        for name, measure in MEASURES.items()
    }
    groups = {"": list(gold)}
    if any(not answers for answers in gold.values()):
        groups["has_answer_"] = [key for key, answers in gold.items() if answers]
        groups["no_answer_"] = [key for key, answers in gold.items() if not answers]
    return {
        f"{prefix}{name}": float(np.mean([by_question[name][key] for key in keys]))
        for prefix, keys in groups.items()
        for name in MEASURES
        if keys
    }


@dataclass(frozen=True)
class Threshold:
    """A question is answered if its probability of no answer is at most ``value``."""

    value: float
    score: float  # the mean score of the measure with this threshold


def best_threshold(
    measure: Callable[[str, str], float],
    gold: Mapping[str, Sequence[str]],
    answers: Mapping[str, str],
    no_answer: Mapping[str, float],
) -> Threshold:
    """The threshold with the highest mean score, the lowest one of equal scores.

    ``answers`` has the best answer to each question, and ``no_answer`` the probability that the
    question has none. The threshold −1 answers no question.
    """
    keys = sorted(gold, key=lambda key: no_answer[key])
    silent = np.array([float(not gold[key]) for key in keys])
    spoken = np.array([best_score(measure, gold[key], answers[key]) for key in keys])
    # Number n: the score if the first n questions are answered, and the others are not.
    totals = silent.sum() + np.concatenate([[0.0], np.cumsum(spoken - silent)])
    values = np.array([-1.0, *(no_answer[key] for key in keys)])
    # Questions of equal probability are answered together.
    possible = np.append(values[1:] > values[:-1], True)
    best = int(np.where(possible, totals, -np.inf).argmax())
    return Threshold(float(values[best]), float(totals[best] / len(keys)))
