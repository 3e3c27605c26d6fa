"""Classifiers for tests of attacks: the words of a text vote for its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fairseq_stochattn.analysis.attacks.search import Attack, Example, Method, attack_all
from fairseq_stochattn.analysis.attacks.text import Query

# Votes of words for class 1. All other words, and the unknown token, have 0 votes.
VOTES = {"superb": 3.0, "great": 2.0, "fine": 1.0, "fair": 0.4, "poor": -2.0, "dull": -1.2}


class Voter:
    """The logit of class 1 is the sum of the votes of all words of all texts."""

    def __init__(self, votes: Mapping[str, float] = VOTES) -> None:
        self.votes = votes
        self.batches: list[list[Query]] = []

    def __call__(self, queries: Sequence[Query]) -> Tensor:
        self.batches.append(list(queries))
        words = [[word for text in query for word in text.split()] for query in queries]
        votes = torch.tensor([sum((self.votes.get(word, 0.0) for word in x), 0.0) for x in words])
        return torch.stack([-votes, votes], dim=1).softmax(dim=-1)


def attacked(method: Method, *texts: str, label: int = 1, number: int = 0) -> Attack:
    """The attack on one text or pair."""
    (found,) = attack_all([Example(number, texts, label)], method, Voter())
    return found
