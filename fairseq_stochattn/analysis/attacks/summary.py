"""Figures about the attacks on many examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .search import Attack


@dataclass(frozen=True)
class Summary:
    """The figures of one model under one attack."""

    examples: int
    clean: float  # accuracy on the original texts
    attacked: float  # accuracy under attack
    # The share of attacks that fail; examples that are classified wrongly are not attacked.
    failure_rate: float
    changed: float  # mean share of words that successful attacks replaced
    queries: float  # mean number of classified texts per attack


def summarise(attacks: Sequence[Attack]) -> Summary:
    """Return the figures; a mean over no attack is NaN."""
    made = [one for one in attacks if one.status != "skipped"]
    succeeded = [one for one in made if one.status == "succeeded"]
    failed = len(made) - len(succeeded)
    return Summary(
        examples=len(attacks),
        clean=_mean([one.status != "skipped" for one in attacks]),
        attacked=failed / len(attacks) if attacks else math.nan,
        failure_rate=failed / len(made) if made else math.nan,
        changed=_mean([one.changed / one.words for one in succeeded]),
        queries=_mean([one.queries for one in made]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
