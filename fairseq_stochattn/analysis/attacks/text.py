"""Texts as words and the characters between them, so that a word can be replaced in place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

# Letters and digits, with apostrophes and hyphens inside: don't, n't, long-term.
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
BETWEEN_SPACES = re.compile(r"\S+")
# Stands for the unknown token. Prepared data never contains this character.
UNKNOWN = "\0"


@dataclass(frozen=True)
class Text:
    """The words of a text and the gaps around them: one gap more than words."""

    words: tuple[str, ...]
    gaps: tuple[str, ...]

    @classmethod
    def split(cls, text: str, word: re.Pattern[str] = WORD) -> Text:
        """Split a text into words, which ``word`` matches, and gaps."""
        found = list(word.finditer(text))
        starts = [0, *(match.end() for match in found)]
        ends = [*(match.start() for match in found), len(text)]
        gaps = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
        return cls(tuple(match[0] for match in found), gaps)

    def __str__(self) -> str:
        """The text with single spaces, as in prepared data."""
        joined = "".join(chain.from_iterable(zip(self.gaps, (*self.words, ""), strict=True)))
        return " ".join(joined.split())

    def replaced(self, index: int, word: str) -> Text:
        """The text with another word at this index; an empty word deletes it."""
        return replace(self, words=(*self.words[:index], word, *self.words[index + 1 :]))

    def around(self, index: int) -> tuple[str, str]:
        """What comes before and after a word."""
        before = replace(self, words=self.words[:index], gaps=self.gaps[: index + 1])
        after = replace(self, words=self.words[index + 1 :], gaps=self.gaps[index + 1 :])
        return str(before), str(after)

    def window(self, index: int, width: int) -> str:
        """At most ``width`` words around a word, with what is between them."""
        start = max(0, index - width // 2)
        end = min(len(self.words), index + width // 2 + 1)
        inner = self.gaps[start + 1 : end]
        return str(Text(self.words[start:end], ("", *inner, "")))


Texts = tuple[Text, ...]  # the text, or both texts of a pair
Query = tuple[str, ...]  # the same as strings


class Place(NamedTuple):
    """The place of a word: the number of the text in a pair, and of the word in the text."""

    part: int
    index: int


def as_query(texts: Texts) -> Query:
    """The strings to classify."""
    return tuple(map(str, texts))


def replaced(texts: Texts, place: Place, word: str) -> Texts:
    """The texts with another word at a place."""
    changed = texts[place.part].replaced(place.index, word)
    return (*texts[: place.part], changed, *texts[place.part + 1 :])


def places(texts: Texts, parts: Sequence[int]) -> list[Place]:
    """The places of all words of the parts."""
    return [Place(part, index) for part in parts for index in range(len(texts[part].words))]


def with_case_of(model: str, word: str) -> str:
    """The word with the capital letters of ``model``: all of them, the first one, or as it is."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word
