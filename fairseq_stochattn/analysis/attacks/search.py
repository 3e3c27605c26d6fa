"""The search of all attacks: ranks the words of a text by importance, then replaces them greedily.

The words are ranked by the probability of the true class without them (Jin et al. 2020). In this
order, each word is replaced by the candidate that lowers this probability most, unless none does.
The attack succeeds when another label is predicted. It fails when all words have been tried, the
allowed share of words has been replaced or the allowed number of queries has been made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from .text import UNKNOWN, Place, Query, Text, Texts, as_query, places, replaced

# Maps n queries to probabilities (n, classes).
Classifier = Callable[[Sequence[Query]], Tensor]
# Yields queries, receives their probabilities and returns the result.
Search = Generator[list[Query], Tensor, "Attack"]
# Log-probabilities are compared with this number of decimals: further ones depend on the batch.
DECIMALS = 4
STATUSES = ("skipped", "failed", "succeeded")


@dataclass(frozen=True)
class Example:
    """One text or pair with its true class."""

    number: int  # of the example in the data set; the random choices depend on it
    texts: tuple[str, ...]
    label: int


@dataclass(frozen=True)
class Attack:
    """The result of the attack on one example."""

    number: int
    texts: Query  # the original texts
    attacked: Query  # the texts after the attack
    label: int
    prediction: int  # the predicted class of ``attacked``
    status: str  # one of STATUSES; skipped: the original was classified wrongly
    words: int  # number of words of the attacked texts
    changed: int  # number of replaced words
    queries: int  # number of texts that were classified


@dataclass(frozen=True)
class Candidates:
    """Replacements of one word, and how similar the text stays with each of them, if known."""

    words: Sequence[str]
    similarity: Tensor | None = None  # (n,)


@dataclass(frozen=True)
class Method:
    """What distinguishes the attacks from each other."""

    split: Callable[[str], Text]  # splits a text into words
    # Whether a word may have candidates; if not, it is not ranked, which saves queries.
    replaceable: Callable[[str], bool]
    # The candidates for the word at a place: (number of the example, original, current, place).
    candidates: Callable[[int, Texts, Texts, Place], Candidates]
    share: float = 1.0  # the share of words that may change
    max_queries: int | None = None
    by_unknown: bool = False  # rank words by replacing them by the unknown token, not deleting them
    # Chooses the texts of a pair that may change.
    parts: Callable[[Texts], Sequence[int]] = lambda texts: range(len(texts))


def search(example: Example, method: Method) -> Search:
    """Attack one example: yields queries and returns an ``Attack``.

    The probabilities that it receives have the shape (n, classes) for n queries; n may be smaller
    than the number of queries if these exceed the allowed number.
    """
    original = tuple(map(method.split, example.texts))
    attackable = places(original, method.parts(original))
    current, changed, queries = original, 0, 0

    def result(status: str, prediction: int) -> Attack:
        return Attack(
            *(example.number, as_query(original), as_query(current), example.label),
            *(prediction, status, len(attackable), changed, queries),
        )

    def ask(texts: Sequence[Texts]) -> Generator[list[Query], Tensor, Tensor]:
        nonlocal queries
        left = None if method.max_queries is None else max(0, method.max_queries - queries)
        asked = [as_query(x) for x in texts[:left]]
        queries += len(asked)
        return (yield asked) if asked else torch.empty(0, example.label + 1)

    first = yield from ask([original])
    prediction, highest = int(first.argmax()), float(risk(first, example.label))
    if prediction != example.label:
        return result("skipped", prediction)
    chosen = [p for p in attackable if method.replaceable(original[p.part].words[p.index])]
    limit = int(method.share * len(attackable))
    removal = UNKNOWN if method.by_unknown else ""
    without = [replaced(original, place, removal) for place in chosen] if limit else []
    importance = risk((yield from ask(without)), example.label)
    for rank in importance.argsort(descending=True, stable=True).tolist():
        place = chosen[rank]
        found = method.candidates(example.number, original, current, place)
        texts = [replaced(current, place, word) for word in found.words]
        probabilities = yield from ask(texts)  # (n, classes)
        risks = risk(probabilities, example.label)  # (n,)
        if not (risks > highest).any():
            continue
        best = int(risks.argmax())
        changed += 1
        successes = probabilities.argmax(dim=1).ne(example.label)  # (n,)
        if successes[best] and found.similarity is not None:
            # Of several changes that succeed, the one that changes the meaning least.
            similarity = found.similarity[: len(successes)]
            best = int(similarity.masked_fill(~successes, -torch.inf).argmax())
        current, highest = texts[best], float(risks[best])
        if successes[best]:
            return result("succeeded", int(probabilities[best].argmax()))
        if changed == limit:
            break
    return result("failed", example.label)


def risk(probabilities: Tensor, label: int) -> Tensor:
    """The log-probability of all classes but the true one: (n, classes) → (n,).

    Unlike the probability of the true class, it is exact where that is almost 1.
    """
    others = probabilities.double().clone()
    others[:, label] = 0
    return others.sum(dim=1).log().round(decimals=DECIMALS)


def attack_all(
    examples: Iterable[Example], method: Method, classify: Classifier, together: int = 32
) -> Iterator[Attack]:
    """Attack all examples and yield the results in the order in which the attacks end.

    ``together`` attacks run at the same time, so that their queries share batches. The results do
    not depend on this number. A text that an attack has already classified is not classified again.
    """
    waiting = iter(examples)
    running: list[_Running] = []
    while True:
        running += [_Running(search(x, method)) for x in islice(waiting, together - len(running))]
        if not running:
            return
        new = [query for one in running for query in one.unknown()]
        answers = iter(classify(new) if new else ())
        for one in running:
            one.learn(answers)
        running, ended = [x for x in running if x.attack is None], [x for x in running if x.attack]
        yield from (one.attack for one in ended)


class _Running:
    """An attack that waits for the answers to its queries."""

    def __init__(self, steps: Search) -> None:
        self.steps = steps
        self.asked = next(steps)
        self.known: dict[Query, Tensor] = {}
        self.attack: Attack | None = None

    def unknown(self) -> list[Query]:
        """The queries without an answer, each of them once."""
        return [query for query in dict.fromkeys(self.asked) if query not in self.known]

    def learn(self, answers: Iterator[Tensor]) -> None:
        """Take the answers to ``unknown()`` and go on to the next queries or the end."""
        for query in self.unknown():
            self.known[query] = next(answers)
        try:
            self.asked = self.steps.send(torch.stack([self.known[query] for query in self.asked]))
        except StopIteration as end:
            self.attack = end.value
