"""Greedy synonym substitution: what is left of a classifier's accuracy when words are exchanged.

The words of a sentence are ranked by how much the probability of the true label falls when one is
unknown (the word importance of Jin et al. 2020). In that order each is replaced by the synonym that
lowers it most, until another label is predicted or as many words have changed as may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

Words = Sequence[str | None]  # None is an unknown word
# Probabilities (n, classes) of n sentences.
Classifier = Callable[[Sequence[Words]], Tensor]


@dataclass(frozen=True)
class Attack:
    """What became of one sentence."""

    words: list[str]
    right: bool  # the prediction for the sentence as it was
    survived: bool  # and it stays so
    changed: int  # words
    queries: int  # sentences that the classifier was asked about


def substitutes(word: str, synonyms: Mapping[str, Sequence[str]]) -> list[str]:
    return [other for other in synonyms.get(word.lower(), ()) if other.lower() != word.lower()]


def attack(
    words: Sequence[str],
    label: int,
    synonyms: Mapping[str, Sequence[str]],
    classify: Classifier,
    share: float,
) -> Attack:
    """Attack a sentence, if its label is predicted, by changing at most ``share`` of its words."""
    asked = 0

    def ask(candidates: Sequence[Words]) -> Tensor:
        nonlocal asked
        asked += len(candidates)
        return classify(candidates)

    def put(position: int, word: str | None) -> list[str | None]:
        return [*now[:position], word, *now[position + 1 :]]

    now = list(words)
    (before,) = ask([now])
    if before.argmax() != label:
        return Attack(now, right=False, survived=False, changed=0, queries=asked)
    known = [i for i, word in enumerate(words) if substitutes(word, synonyms)]
    most = int(share * len(words))
    if not known or most == 0:
        return Attack(now, right=True, survived=True, changed=0, queries=asked)
    without = ask([put(i, None) for i in known])[:, label]
    lowest, changed = before[label], 0
    for rank in without.argsort(stable=True).tolist():
        position = known[rank]
        candidates = [put(position, word) for word in substitutes(words[position], synonyms)]
        found = ask(candidates)  # (synonyms, classes)
        best = int(found[:, label].argmin())
        if found[best, label] >= lowest:
            continue
        now, lowest, changed = candidates[best], found[best, label], changed + 1
        if found[best].argmax() != label:
            return Attack(now, right=True, survived=False, changed=changed, queries=asked)
        if changed == most:
            break
    return Attack(now, right=True, survived=True, changed=changed, queries=asked)


@dataclass(frozen=True)
class Robustness:
    """Of many attacks: shares of all sentences; the others over those that were attacked."""

    clean: float
    attacked: float
    changed: float  # mean share of words in sentences whose prediction was changed
    queries: float  # mean number of a sentence that was predicted rightly


def summarise(attacks: Sequence[Attack]) -> Robustness:
    right = [one for one in attacks if one.right]
    lost = [one for one in right if not one.survived]
    return Robustness(
        clean=len(right) / len(attacks),
        attacked=(len(right) - len(lost)) / len(attacks),
        changed=sum(one.changed / len(one.words) for one in lost) / max(1, len(lost)),
        queries=sum(one.queries for one in right) / max(1, len(right)),
    )
