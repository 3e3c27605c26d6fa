"""The attacks: where the candidates for a word come from, and what is checked.

| attack     | candidates                                  | paper                        |
|------------|---------------------------------------------|------------------------------|
| greedy     | synonyms                                    | –                            |
| textfooler | synonyms                                    | Jin et al. 2020              |
| textbugger | misspellings, and synonyms if given         | Li et al. 2019               |
| bae        | what a masked language model puts in (BAE-R) | Garg and Ramakrishnan 2020   |

Settings are those of TextAttack's recipes (Morris et al. 2020), with which the papers on babn and
alignment measure robustness.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos

from ...core.errors import InputError
from .checks import SentenceEncoder, Similarity, Tagger, same_part_of_speech
from .search import Candidates, Method
from .stop_words import STOP_WORDS
from .text import BETWEEN_SPACES, WORD, Place, Text, Texts, with_case_of
from .typos import typos

# Returns at most ``count`` words that a masked language model puts between two pieces of text.
FillMask = Callable[[str, str, int], list[str]]
PARTS = ("first", "second", "longer", "all")
# Proposes words for the word at a place: (number of the example, current, place).
Propose = Callable[[int, Texts, Place], list[str]]
WINDOW = 15  # words that TextFooler and BAE compare


@dataclass(frozen=True)
class Resources:
    """What the user gives to an attack; None where it is not given."""

    synonyms: Mapping[str, Sequence[str]] | None = None
    fill_mask: FillMask | None = None
    tagger: Tagger | None = None
    encoder: SentenceEncoder | None = None
    stop_words: Collection[str] = field(default=STOP_WORDS)


@dataclass(frozen=True)
class Limits:
    """What bounds an attack. None: the default of the attack."""

    share: float | None = None  # of the words that may change
    max_candidates: int | None = None  # per word, from synonyms or the masked language model
    max_queries: int | None = None
    min_similarity: float | None = None  # cosine
    parts: str = "second"  # which text of a pair changes
    seed: int = 1


@dataclass(frozen=True)
class Recipe:
    """The settings of one attack. Default limits apply where the user sets none."""

    needs: str | None  # the resource without which the attack cannot run
    share: float = 1.0
    max_candidates: int = 50
    similarity: float = 0.0
    window: int | None = None
    to_original: bool = True
    checks_tags: bool = True
    whole_tokens: bool = False  # words are what is between spaces, instead of letters and digits
    keeps_stop_words: bool = True
    by_unknown: bool = False


# TextAttack bounds the angle for TextFooler (0.5 radians), and the cosine for the others.
RECIPES = {
    "greedy": Recipe(
        "synonyms",
        share=0.25,
        **{"checks_tags": False, "whole_tokens": True},
        **{"keeps_stop_words": False, "by_unknown": True},
    ),
    "textfooler": Recipe("synonyms", similarity=cos(0.5), window=WINDOW, to_original=False),
    "textbugger": Recipe(None, max_candidates=5, similarity=0.8, checks_tags=False),
    "bae": Recipe("fill_mask", similarity=0.936, window=WINDOW),
}


def build(name: str, given: Resources, limits: Limits) -> Method:
    """Return the attack ``name`` with these resources and limits."""
    recipe = RECIPES[name]
    if recipe.needs is not None and getattr(given, recipe.needs) is None:
        raise InputError(f"the attack {name} needs {recipe.needs.replace('_', ' ')}")
    count = _default(limits.max_candidates, recipe.max_candidates)
    propose, possible = _proposals(name, given, count, limits.seed)
    threshold = _default(limits.min_similarity, recipe.similarity)
    similar = None
    if given.encoder is not None:
        similar = Similarity(given.encoder, threshold, recipe.window, recipe.to_original)
    kept = given.stop_words if recipe.keeps_stop_words else ()

    def candidates(number: int, original: Texts, current: Texts, place: Place) -> Candidates:
        text = current[place.part]
        model = text.words[place.index]
        words = [with_case_of(model, word) for word in propose(number, current, place)]
        words = [word for word in dict.fromkeys(words) if word.lower() != model.lower()]
        if recipe.checks_tags and given.tagger is not None:
            words = same_part_of_speech(given.tagger, text, place.index, words)
        if similar is None:
            return Candidates(words)
        return Candidates(*similar(original, current, place, words))

    pattern = BETWEEN_SPACES if recipe.whole_tokens else WORD
    return Method(
        split=lambda text: Text.split(text, pattern),
        replaceable=lambda word: word.lower() not in kept and possible(word),
        candidates=candidates,
        share=_default(limits.share, recipe.share),
        max_queries=limits.max_queries,
        by_unknown=recipe.by_unknown,
        parts=lambda texts: attacked_parts(texts, limits.parts),
    )


def attacked_parts(texts: Texts, which: str) -> Sequence[int]:
    """The numbers of the texts that an attack may change; a single text always may."""
    if len(texts) == 1 or which == "all":
        return range(len(texts))
    if which == "longer":
        # Of two texts of the same length, the second.
        return [max(range(len(texts)), key=lambda part: (len(texts[part].words), part))]
    return [("first", "second").index(which)]


def _default(given: float | None, default: float) -> float:
    return default if given is None else given


def _proposals(
    name: str, given: Resources, count: int, seed: int
) -> tuple[Propose, Callable[[str], bool]]:
    """A function that proposes words, and one that says whether a word can have any."""
    synonyms = given.synonyms or {}

    def meaning_the_same(word: str) -> list[str]:
        others = [x for x in synonyms.get(word.lower(), ()) if x.lower() != word.lower()]
        return others[:count]

    def from_synonyms(number: int, current: Texts, place: Place) -> list[str]:
        return meaning_the_same(current[place.part].words[place.index])

    def misspelt(number: int, current: Texts, place: Place) -> list[str]:
        word = current[place.part].words[place.index]
        # The misspellings of a word are the same for every model and every order of the attacks.
        rng = random.Random(f"{seed} {number} {place.part} {place.index}")
        return [*typos(word, rng), *meaning_the_same(word)]

    def from_mask(number: int, current: Texts, place: Place) -> list[str]:
        return given.fill_mask(*current[place.part].around(place.index), count)

    if name == "bae":
        return from_mask, lambda word: True
    if name == "textbugger":
        rng = random.Random(0)
        return misspelt, lambda word: bool(typos(word, rng) or meaning_the_same(word))
    return from_synonyms, lambda word: bool(meaning_the_same(word))
