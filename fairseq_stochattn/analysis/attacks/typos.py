"""TextBugger's misspellings (Li et al. 2019, §3.3): one edit that people read over.

A space inside a short word, a missing letter, two swapped letters, a character that looks alike,
or a key next to the right one.
"""

from __future__ import annotations

import random

LOOK_ALIKES = {"a": "@", "e": "3", "g": "9", "i": "1", "l": "1", "o": "0", "s": "5", "t": "7"}
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
SHORT = 6  # a space inside a longer word may leave two other words


def neighbours(letter: str) -> str:
    """The letters next to a lower-case letter on an English keyboard; empty for other characters.

    The rows of a keyboard are shifted: each key touches two keys of the row below.
    """
    for number, row in enumerate(KEYBOARD):
        at = row.find(letter)
        if at >= 0:
            above = KEYBOARD[number - 1][at : at + 2] if number else ""
            below = KEYBOARD[number + 1] if number + 1 < len(KEYBOARD) else ""
            touching = below[max(0, at - 1) : at + 1]
            return row[max(0, at - 1) : at] + row[at + 1 : at + 2] + above + touching
    return ""


def typos(word: str, rng: random.Random) -> list[str]:
    """At most five misspellings of a word, one of each kind, at random places.

    Except for look-alikes, the first and the last letter stay. A word without letters, or of one
    letter, has no misspellings.
    """
    if len(word) < 2 or not any(character.isalpha() for character in word):
        return []
    kinds = (_with_space, _without_letter, _swapped, _look_alike, _next_key)
    found = [kind(word, rng) for kind in kinds]
    return list(dict.fromkeys(x for x in found if x is not None and x != word))


def _with_space(word: str, rng: random.Random) -> str | None:
    if len(word) >= SHORT:
        return None
    at = rng.randrange(1, len(word))
    return f"{word[:at]} {word[at:]}"


def _without_letter(word: str, rng: random.Random) -> str | None:
    if len(word) < 3:
        return None
    at = rng.randrange(1, len(word) - 1)
    return word[:at] + word[at + 1 :]


def _swapped(word: str, rng: random.Random) -> str | None:
    inner = [i for i in range(1, len(word) - 2) if word[i] != word[i + 1]]
    if not inner:
        return None
    at = rng.choice(inner)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _look_alike(word: str, rng: random.Random) -> str | None:
    known = [i for i, character in enumerate(word) if character.lower() in LOOK_ALIKES]
    if not known:
        return None
    at = rng.choice(known)
    return word[:at] + LOOK_ALIKES[word[at].lower()] + word[at + 1 :]


def _next_key(word: str, rng: random.Random) -> str | None:
    known = [i for i in range(1, len(word) - 1) if neighbours(word[i].lower())]
    if not known:
        return None
    at = rng.choice(known)
    key = rng.choice(neighbours(word[at].lower()))
    return word[:at] + (key.upper() if word[at].isupper() else key) + word[at + 1 :]
