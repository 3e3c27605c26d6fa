"""Read the U- lines of stochattn-generate and rank translations by their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of one translation over samples of the attention, in bits."""

    surprise: float  # −log₂ probability of the translation, mean over the samples
    spread: float  # its standard deviation over the samples


def read_uncertainties(log: str) -> list[Uncertainty]:
    """Return the U- lines of a log in the order of the sentences; empty if there are none."""
    rows: dict[int, Uncertainty] = {}
    for line in log.splitlines():
        if line.startswith("U-"):
            number, mean, spread, _ = line.split("\t")
            rows[int(number.removeprefix("U-"))] = Uncertainty(-float(mean), float(spread))
    return [rows[number] for number in sorted(rows)]


def auroc(uncertainties: list[Uncertainty], ambiguous: list[bool]) -> dict[str, float]:
    """Return how often an ambiguous sentence is less certain than another one; 0.5 is chance.

    The surprise measures the total uncertainty, the spread the part that sampling shows.
    """
    from sklearn.metrics import roc_auc_score

    return {
        name: float(roc_auc_score(ambiguous, [getattr(row, name) for row in uncertainties]))
        for name in ("surprise", "spread")
    }


def describe(
    uncertainties: list[Uncertainty], records: list[dict], translations: list[str], shown: int = 3
) -> list[str]:
    """Return lines for the terminal: the least and the most certain translations."""
    order = sorted(range(len(uncertainties)), key=lambda number: -uncertainties[number].surprise)
    tenth = order[: max(1, len(order) // 10)]
    share = sum(records[number]["ambiguous"] for number in tenth) / len(tenth)
    share_of_all = sum(record["ambiguous"] for record in records) / len(records)

    def show(number: int) -> list[str]:
        row, possible = uncertainties[number], len(records[number]["references"])
        return [
            f"  {row.surprise:5.2f} ± {row.spread:.2f} bits  {translations[number]}",
            f"    {records[number]['de']}  [{possible} possible]",
        ]

    return [
        f"least certain ({share:.0%} of the least certain tenth are ambiguous, "
        f"{share_of_all:.0%} of all):",
        *(line for number in order[:shown] for line in show(number)),
        "most certain:",
        *(line for number in order[-2:] for line in show(number)),
    ]
