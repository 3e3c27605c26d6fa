"""Answers of several people to a question: normalisation, classes and soft scores.

The accuracy of the VQA challenge gives an answer the score min(n/3, 1), where n other people gave
it, averaged over the people who are left out in turn. An answer that c of N people gave has thus
the score

    [c·min((c − 1)/3, 1) + (N − c)·min(c/3, 1)] / N

With ten people these are 0.3, 0.6, 0.9 and 1 for one, two, three and more of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

ENOUGH = 3  # people who make an answer fully right
_ARTICLES = ("a", "an", "the")
_NUMBERS = dict(
    zip(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        map(str, range(11)),
        strict=True,
    )
) | {"none": "0"}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d)")
_PERIOD = re.compile(r"(?<!\d)\.|\.(?!\d)")
_MARKS = re.compile(r"[^\w\s.:'$%°&*#]|_")


def normalized(answer: str) -> str:
    """Return an answer in the form in which answers are compared.

    Lower case, number words as digits, no articles; punctuation becomes a space, except in numbers
    such as 1,000 and 2.5. Unlike in the challenge's own code, missing apostrophes ("dont") stay
    missing.
    """
    text = _THOUSANDS.sub("", answer.lower().replace("\0", ""))
    text = _MARKS.sub(" ", _PERIOD.sub("", text))
    words = (_NUMBERS.get(word, word) for word in text.split())
    return " ".join(word for word in words if word not in _ARTICLES)


def soft_scores(answers: Iterable[str], main: str) -> dict[str, float]:
    """Return the score of every answer to a question, the main answer first, then by score.

    ``answers`` are those of all people, ``main`` is the answer that most of them gave.
    """
    counts = Counter(normalized(answer) for answer in answers)
    people = counts.total()
    first = normalized(main)
    order = sorted(counts, key=lambda answer: (answer != first, -counts[answer], answer))
    return {answer: _score(counts[answer], people) for answer in order if answer}


def _score(count: int, people: int) -> float:
    with_own = min(count / ENOUGH, 1.0)  # as seen by those who gave another answer
    without = min((count - 1) / ENOUGH, 1.0)
    return (count * without + (people - count) * with_own) / people


def frequent_answers(main_answers: Iterable[str], least: int) -> Sequence[str]:
    """Return the main answers that occur ``least`` times or more, most frequent first."""
    counts = Counter(answer for answer in map(normalized, main_answers) if answer)
    kept = [answer for answer, count in counts.items() if count >= least]
    return sorted(kept, key=lambda answer: (-counts[answer], answer))
