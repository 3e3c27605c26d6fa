"""Read questions about paragraphs in SQuAD's format, and cut long paragraphs into windows.

A window is the question with a part of the paragraph. Its label is the span of the answer within
that part, or ``NO_ANSWER``. Answers are cut out of the original text by the characters that the
subwords cover.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from steps.errors import PrepError
from steps.lines import TextFile
from steps.offsets import Pieces
from steps.tables import read_json

NO_ANSWER = (-1, -1)


@dataclass(frozen=True)
class Question:
    """One question; ``answers`` are (text, first character) and None in a set without answers."""

    id: str
    text: str
    answers: tuple[tuple[str, int], ...] | None


@dataclass(frozen=True)
class Paragraph:
    context: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Article:
    title: str
    paragraphs: tuple[Paragraph, ...]


@dataclass
class Counts:
    """What happened to the questions of a split."""

    questions: int = 0
    unanswerable: int = 0
    contexts: int = 0
    windows: int = 0
    windows_with_answer: int = 0
    shortened: int = 0  # questions that were cut to --max-question
    moved: int = 0  # answers whose first character was wrong
    inside: int = 0  # answers that begin or end inside a subword
    in_no_window: int = 0  # answers that are longer than every window
    dropped: Counter[str] = field(default_factory=Counter)


def read_articles(file: TextFile) -> list[Article]:
    """Return the articles of a file in SQuAD's format; a ``PrepError`` names what is wrong."""
    content = read_json(file)
    rows = content.get("data") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise PrepError(f"{file} is not in SQuAD's format: it has no list 'data'")
    articles, seen = [], set()
    for number, row in enumerate(rows):
        try:
            articles.append(_article(row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            cause = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise PrepError(f"{file}: article {number} is not in SQuAD's format: {cause}") from None
        for paragraph in articles[-1].paragraphs:
            for question in paragraph.questions:
                if question.id in seen:
                    raise PrepError(f"{file}: the question {question.id} occurs twice")
                seen.add(question.id)
    return articles


def _article(row: dict[str, Any]) -> Article:
    paragraphs = tuple(
        Paragraph(_text(part["context"]), tuple(map(_question, part["qas"])))
        for part in row["paragraphs"]
    )
    return Article(str(row.get("title", "")), paragraphs)


def _question(row: dict[str, Any]) -> Question:
    answers = row.get("answers")
    if row.get("is_impossible"):
        answers = []
    if answers is not None:
        answers = tuple((_text(x["text"]), _place(x["answer_start"])) for x in answers)
    return Question(_text(row["id"]), _text(row["question"]), answers)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not a text")
    return value


def _place(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the answer_start {str(value)[:40]!r} is not a whole number")
    return value


def find_answer(context: str, text: str, place: int) -> int | None:
    """Return the first character of an answer: ``place``, or the closest place where the text is.

    Returns None if the context does not contain the text.
    """
    if not text.strip():
        return None
    if place >= 0 and context.startswith(text, place):
        return place
    found, best = context.find(text), None
    while found >= 0:
        if best is None or abs(found - place) < abs(best - place):
            best = found
        found = context.find(text, found + 1)
    return best


def covering(pieces: Pieces, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last subword that cover characters start … end − 1; None if none."""
    first = bisect_right(pieces.ends, start)
    last = bisect_left(pieces.starts, end) - 1
    return (first, last) if first <= last else None


def windows_of(length: int, room: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield first subword and number of subwords of each window over a context.

    A new window begins every ``step`` subwords until one reaches the end.
    """
    start = 0
    while True:
        count = min(room, length - start)
        yield start, count
        if start + count >= length:
            return
        start += step


def target_of(
    question: Question, context: str, pieces: Pieces, counts: Counts
) -> tuple[int, int] | str:
    """Return the subwords of the first answer, ``NO_ANSWER``, or a reason to drop the question."""
    if not question.answers:
        return NO_ANSWER
    text, place = question.answers[0]
    found = find_answer(context, text, place)
    if found is None:
        return "answer that is not in the context"
    counts.moved += found != place
    text_end = found + len(text.rstrip())
    start = found + len(text) - len(text.lstrip())
    span = covering(pieces, start, text_end)
    if span is None:
        return "answer without any subword"
    first, last = span
    counts.inside += pieces.starts[first] != start or pieces.ends[last] != text_end
    return span


def within(span: tuple[int, int], start: int, count: int) -> tuple[int, int]:
    """Return the span counted from the start of a window; ``NO_ANSWER`` if it is not inside."""
    first, last = span
    if span == NO_ANSWER or first < start or last >= start + count:
        return NO_ANSWER
    return first - start, last - start
