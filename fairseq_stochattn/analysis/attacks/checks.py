"""Checks of candidates: the part of speech of the word and the meaning of the text must stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.json_input import read_json
from ...core.optional import optional_import
from .text import Place, Text, Texts, replaced

# Returns the tags of all words of a text, in universal part-of-speech tags. A word may have several
# possible tags, or none if it is not known.
Tagger = Callable[[Sequence[str]], Sequence[frozenset[str]]]
# Maps n texts to n vectors (n, d) of length 1.
SentenceEncoder = Callable[[Sequence[str]], Tensor]
NOUN_OR_VERB = frozenset({"NOUN", "VERB"})


def lexicon_tagger(tags: Mapping[str, Sequence[str]]) -> Tagger:
    """A tagger that knows the possible tags of each word, whatever the text."""
    by_word = {word.lower(): frozenset(x.upper() for x in found) for word, found in tags.items()}
    return lambda words: [by_word.get(word.lower(), frozenset()) for word in words]


def nltk_tagger() -> Tagger:
    """The tagger of the package nltk, which reads the whole text."""
    nltk = optional_import("nltk", "--pos nltk", None)

    def tag(words: Sequence[str]) -> list[frozenset[str]]:
        try:
            return [frozenset({x}) for _, x in nltk.pos_tag(list(words), tagset="universal")]
        except LookupError:
            raise InputError(
                "--pos nltk: its data is missing: python -m nltk.downloader "
                "averaged_perceptron_tagger_eng universal_tagset"
            ) from None

    return tag


def load_tagger(source: str) -> Tagger:
    """The tagger of ``--pos``: ``nltk``, or a JSON file of words and their possible tags."""
    return nltk_tagger() if source == "nltk" else lexicon_tagger(read_words(Path(source), "tags"))


def read_words(path: Path, what: str) -> dict[str, list[str]]:
    """Return the content of a JSON file that maps words to lists of strings."""
    found = read_json(path)
    lists = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(x, list) and all(isinstance(y, str) for y in x) for x in lists):
        raise InputError(f"{path} is not a JSON object of words and lists of {what}")
    return found


def same_part_of_speech(tag: Tagger, text: Text, index: int, words: Sequence[str]) -> list[str]:
    """The words that have a tag of the word that they replace.

    A noun may replace a verb and a verb a noun, as in Jin et al. (2020). Words without tags pass.
    """
    allowed = tag(text.words)[index]
    if allowed & NOUN_OR_VERB:
        allowed |= NOUN_OR_VERB
    kept = []
    for word in words:
        found = tag(text.replaced(index, word).words)[index]
        if not (allowed and found) or allowed & found:
            kept.append(word)
    return kept


@dataclass(frozen=True)
class Similarity:
    """Requires that the vectors of a text before and after a change are similar.

    ``threshold`` is the least cosine. With ``window``, only so many words around the change are
    compared; texts of fewer words are then not compared at all, as in TextFooler. The text before
    the change is the original one or, without ``to_original``, the one with the earlier changes.
    """

    encode: SentenceEncoder
    threshold: float
    window: int | None = None
    to_original: bool = True

    def __call__(
        self, original: Texts, current: Texts, place: Place, words: Sequence[str]
    ) -> tuple[list[str], Tensor | None]:
        """The words that pass, and their cosines (n,), or None if nothing was compared."""
        before = (original if self.to_original else current)[place.part]
        if not words or (self.window is not None and len(before.words) < self.window):
            return list(words), None
        after = [replaced(current, place, word)[place.part] for word in words]
        vectors = self.encode([self._compared(x, place.index) for x in (before, *after)])
        cosines = (vectors[1:] @ vectors[0]).clamp(-1, 1)  # (n,)
        kept = torch.nonzero(cosines >= self.threshold).flatten()
        return [words[i] for i in kept.tolist()], cosines[kept]

    def _compared(self, text: Text, index: int) -> str:
        return str(text) if self.window is None else text.window(index, self.window)
