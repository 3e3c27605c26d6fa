"""Greedy synonym substitution: an attack that measures the robustness of a classifier.

The words of a sentence are ranked by importance (Jin et al. 2020): the drop in the probability of
the true label when the word is replaced by the unknown token. In this order, each word is replaced
by the synonym that lowers this probability most. The attack stops when another label is predicted
or when the allowed number of words has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

Words = Sequence[str | None]  # None is the unknown token
# Maps n sentences to probabilities (n, classes).
Classifier = Callable[[Sequence[Words]], Tensor]


@dataclass(frozen=True)
class Attack:
    """The result of an attack on one sentence."""

    words: list[str]  # the sentence after the attack
    right: bool  # whether the original sentence is classified correctly
    survived: bool  # whether the attacked sentence is still classified correctly
    changed: int  # number of replaced words
    queries: int  # number of sentences that were classified during the attack


def substitutes(word: str, synonyms: Mapping[str, Sequence[str]]) -> list[str]:
    """The synonyms of a word, except the word itself; case is ignored."""
    return [other for other in synonyms.get(word.lower(), ()) if other.lower() != word.lower()]


def attack(
    words: Sequence[str],
    label: int,
    synonyms: Mapping[str, Sequence[str]],
    classify: Classifier,
    share: float,
) -> Attack:
    """Attack a sentence by replacing at most ``share`` of its words.

    A sentence that is classified wrongly is not attacked.
    """
    queries = 0

    def count_and_classify(candidates: Sequence[Words]) -> Tensor:
        nonlocal queries
        queries += len(candidates)
        return classify(candidates)

    def replaced(position: int, word: str | None) -> list[str | None]:
        return [*current[:position], word, *current[position + 1 :]]

    current = list(words)
    (original,) = count_and_classify([current])
    if original.argmax() != label:
        return Attack(current, right=False, survived=False, changed=0, queries=queries)
    replaceable = [i for i, word in enumerate(words) if substitutes(word, synonyms)]
    limit = int(share * len(words))
    if not replaceable or limit == 0:
        return Attack(current, right=True, survived=True, changed=0, queries=queries)
    without_word = count_and_classify([replaced(i, None) for i in replaceable])[:, label]
    lowest, changed = original[label], 0
    for rank in without_word.argsort(stable=True).tolist():
        position = replaceable[rank]
        candidates = [replaced(position, word) for word in substitutes(words[position], synonyms)]
        probabilities = count_and_classify(candidates)  # (synonyms, classes)
        best = int(probabilities[:, label].argmin())
        if probabilities[best, label] >= lowest:
            continue
        current, lowest = candidates[best], probabilities[best, label]
        changed += 1
        if probabilities[best].argmax() != label:
            return Attack(current, right=True, survived=False, changed=changed, queries=queries)
        if changed == limit:
            break
    return Attack(current, right=True, survived=True, changed=changed, queries=queries)


@dataclass(frozen=True)
class Robustness:
    """The summary of attacks on many sentences."""

    clean: float  # accuracy on the original sentences
    attacked: float  # accuracy on the attacked sentences
    changed: float  # mean share of replaced words in sentences on which the attack succeeded
    queries: float  # mean number of classified sentences per attack


def summarise(attacks: Sequence[Attack]) -> Robustness:
    """Return the accuracies over all sentences, and two means.

    ``queries`` is averaged over the sentences that are classified correctly at first, ``changed``
    over those of them on which the attack succeeded.
    """
    right = [one for one in attacks if one.right]
    lost = [one for one in right if not one.survived]
    return Robustness(
        clean=len(right) / len(attacks),
        attacked=(len(right) - len(lost)) / len(attacks),
        changed=sum(one.changed / len(one.words) for one in lost) / max(1, len(lost)),
        queries=sum(one.queries for one in right) / max(1, len(right)),
    )
