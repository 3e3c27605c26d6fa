"""Find the entities of a graph in a text, so that a model can copy them.

A name matches if its tokens occur in the text one after another, ignoring case, accents and the
kind of dashes and quotes. Besides the name itself, these forms match: the name without a bracket at
its end; for a date, "day month year", with or without "the … of", and "month day , year"; for a
number, its digits with a comma between thousands or with ".0". Longer matches precede shorter ones,
and no token belongs to two matches. An entity that is written in another way stays in words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

Tokenise = Callable[[str], Sequence[str]]

MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_NUMBER = re.compile(r"\d{1,15}")
_BRACKET = re.compile(r"\s*\([^()]*\)$")
_SAME = str.maketrans({"–": "-", "—": "-", "−": "-", "’": "'", "‘": "'", "“": '"', "”": '"'})


def fold(token: str) -> str:
    """A token in lower case, without accents, with plain dashes and quotes."""
    letters = unicodedata.normalize("NFKD", token.translate(_SAME).casefold())
    return "".join(c for c in letters if not unicodedata.combining(c))


def spoken(name: str) -> str:
    """A name as texts write it: a date as "may 4 , 1990", anything else unchanged."""
    date = _DATE.fullmatch(name)
    if date is None or not 1 <= int(date[2]) <= 12:
        return name
    return f"{MONTHS[int(date[2]) - 1]} {int(date[3])} , {int(date[1])}"


def forms(name: str) -> list[str]:
    """All ways to write a name that count as a mention."""
    found = [name, spoken(name), _BRACKET.sub("", name)]
    date = _DATE.fullmatch(name)
    if date is not None and 1 <= int(date[2]) <= 12:
        year, month, day = int(date[1]), MONTHS[int(date[2]) - 1], int(date[3])
        for number in (str(day), ordinal(day)):
            found += [f"{number} {month} {year}", f"{number} {month} , {year}"]
            found += [f"{month} {number} , {year}", f"{month} {number} {year}"]
            found += [f"{number} of {month} {year}", f"{number} of {month} , {year}"]
            found += [f"the {number} of {month} {year}", f"the {number} of {month} , {year}"]
    if _NUMBER.fullmatch(name):
        found += [f"{name}.0", *([f"{int(name):,}"] if len(name) > 3 else [])]
    return [x for x in dict.fromkeys(found) if x]


def ordinal(number: int) -> str:
    """1 → 1st, 12 → 12th."""
    last = 0 if 10 < number % 100 < 20 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


class Mentions:
    """Finds the entities of one graph in texts about it."""

    def __init__(self, names: Sequence[str], tokenise: Tokenise) -> None:
        self.entity_of: dict[tuple[str, ...], int] = {}
        for number, name in enumerate(names):
            for form in forms(name):
                tokens = tuple(map(fold, tokenise(form)))
                if tokens:
                    self.entity_of.setdefault(tokens, number)
        self.lengths = sorted({len(x) for x in self.entity_of}, reverse=True)

    def mark(self, tokens: Sequence[str], symbol: str) -> list[str]:
        """Replace mentions by ``symbol``, formatted with the number of the entity."""
        folded = [fold(token) for token in tokens]
        taken: dict[int, tuple[int, int]] = {}  # start → length and entity
        free = [True] * len(tokens)
        for length in self.lengths:
            for start in range(len(tokens) - length + 1):
                entity = self.entity_of.get(tuple(folded[start : start + length]))
                if entity is not None and all(free[start : start + length]):
                    taken[start] = length, entity
                    free[start : start + length] = [False] * length
        marked = []
        for position, token in enumerate(tokens):
            if position in taken:
                marked.append(symbol.format(taken[position][1]))
            elif free[position]:
                marked.append(token)
        return marked
