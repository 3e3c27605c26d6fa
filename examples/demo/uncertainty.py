"""What the demo makes of stochattn-generate's U- lines: which translations it is unsure of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Doubt:
    """How unsure the model is of one translation, over samples of its attention, in bits."""

    surprise: float  # −log₂ of the translation's probability, mean over the samples
    spread: float  # standard deviation of that


def read_doubts(log: str) -> list[Doubt]:
    """The U- lines of a log in the order of the sentences; empty if it has none."""
    found: dict[int, Doubt] = {}
    for line in log.splitlines():
        if line.startswith("U-"):
            number, mean, spread, _ = line.split("\t")
            found[int(number.removeprefix("U-"))] = Doubt(-float(mean), float(spread))
    return [found[number] for number in sorted(found)]


def auroc(doubts: list[Doubt], ambiguous: list[bool]) -> dict[str, float]:
    """How often an ambiguous sentence has the greater doubt than another one: 0.5 is chance.

    By the surprise, which counts all doubt, and by the spread, which only sampling shows.
    """
    from sklearn.metrics import roc_auc_score

    return {
        name: float(roc_auc_score(ambiguous, [getattr(doubt, name) for doubt in doubts]))
        for name in ("surprise", "spread")
    }


def describe(
    doubts: list[Doubt], records: list[dict], translations: list[str], shown: int = 3
) -> list[str]:
    """The sentences the model is least and most sure of, for the terminal."""
    order = sorted(range(len(doubts)), key=lambda number: -doubts[number].surprise)
    tenth = order[: max(1, len(order) // 10)]
    share = sum(records[number]["ambiguous"] for number in tenth) / len(tenth)
    everywhere = sum(record["ambiguous"] for record in records) / len(records)
    shares = f"of the least sure tenth {share:.0%} are ambiguous, of all {everywhere:.0%}"
    lines = [f"least sure of ({shares}):"]
    rows = [*order[:shown], None, *order[-2:]]
    for number in rows:
        if number is None:
            lines.append("most sure of:")
            continue
        possible = len(records[number]["references"])
        doubt = doubts[number]
        lines.append(f"  {doubt.surprise:5.2f} ± {doubt.spread:.2f} bits  {translations[number]}")
        lines.append(f"    {records[number]['de']}  [{possible} possible]")
    return lines
