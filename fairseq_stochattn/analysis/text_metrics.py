"""Measures of generated texts with one or several references; all but BLEU are means over texts.

Texts are compared token by token, as they are. BLEU-n is sacrebleu's BLEU with n-grams up to n,
without tokenising. ROUGE-N and ROUGE-L are F1 scores, those of the best reference. METEOR is nltk's
(Banerjee and Lavie 2005) with two of its three stages: equal words and equal Porter stems. The
third, synonyms, needs WordNet, which would have to be downloaded. So scores are lower than those of
METEOR 1.5, which papers usually give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from sacrebleu.metrics import BLEU

from ..core.optional import optional_import

ORDERS = (1, 2, 3, 4)


class Generated(NamedTuple):
    """A generated text, its references, and the names of the entities it should mention."""

    text: str
    references: list[str]
    entities: list[str]


class NoSynonyms:
    """Takes the place of WordNet in nltk: no word has a synonym."""

    @staticmethod
    def synsets(word: str) -> list:
        return []


def text_metrics(rows: Sequence[Generated]) -> dict[str, float]:
    """All measures by name, in percent; METEOR only if nltk is installed."""
    found = {f"bleu{order}": bleu(rows, order) for order in ORDERS}
    if find_spec("nltk") is not None:
        found["meteor"] = mean([meteor(row.text, row.references) for row in rows])
    return {
        **found,
        **{f"rouge{n}": mean([rouge_n(x.text, x.references, n) for x in rows]) for n in (1, 2)},
        "rougeL": mean([rouge_l(row.text, row.references) for row in rows]),
        "coverage": coverage(rows),
    }


def mean(values: Sequence[float]) -> float:
    """The mean in percent."""
    return 100 * sum(values) / max(1, len(values))


def bleu(rows: Sequence[Generated], order: int) -> float:
    """Corpus BLEU with n-grams up to ``order``; a text may have fewer references than others."""
    scorer = BLEU(max_ngram_order=order, tokenize="none", force=True)
    most = max(len(row.references) for row in rows)
    streams = [
        [row.references[i] if i < len(row.references) else None for row in rows]
        for i in range(most)
    ]
    return scorer.corpus_score([row.text for row in rows], streams).score


def meteor(text: str, references: Sequence[str]) -> float:
    """METEOR of the best reference, without synonyms."""
    score = optional_import("nltk.translate.meteor_score", "METEOR", "text").meteor_score
    return score(
        [reference.split() for reference in references], text.split(), wordnet=NoSynonyms()
    )


def rouge_n(text: str, references: Sequence[str], n: int) -> float:
    """F1 of the n-grams that text and reference share."""
    found = ngrams(text.split(), n)
    return max(
        f1((found & wanted).total(), found.total(), wanted.total())
        for wanted in (ngrams(reference.split(), n) for reference in references)
    )


def ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """How often every n-gram occurs."""
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def rouge_l(text: str, references: Sequence[str]) -> float:
    """F1 of the longest common subsequence."""
    found = text.split()
    return max(
        f1(longest_common_subsequence(found, wanted), len(found), len(wanted))
        for wanted in (reference.split() for reference in references)
    )


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest sequence of tokens that both contain in this order."""
    lengths = [0] * (len(b) + 1)  # of the first tokens of a and every beginning of b
    for x in a:
        previous = 0
        for j, y in enumerate(b, start=1):
            above = lengths[j]
            lengths[j] = previous + 1 if x == y else max(above, lengths[j - 1])
            previous = above
    return lengths[-1]


def f1(shared: int, found: int, wanted: int) -> float:
    """The harmonic mean of shared / found and shared / wanted; 0 without any."""
    return 2 * shared / (found + wanted) if shared else 0.0


def coverage(rows: Sequence[Generated]) -> float:
    """The share of all entities whose names occur in their text, in percent."""
    covered = [f" {name} " in f" {row.text} " for row in rows for name in row.entities]
    return mean(covered)
