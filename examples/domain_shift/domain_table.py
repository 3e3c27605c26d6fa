"""Prints accuracy, ECE and PAvPU in and out of domain, one line per method, averaged over seeds.

python examples/domain_shift/domain_table.py OUT/PAIR-seed*.json

The files are those of stochattn-evaluate --json with an out-of-domain set that has labels.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from fairseq_stochattn.analysis.evaluation_file import read_evaluation
from fairseq_stochattn.commands.command import OneLineParser, command
from fairseq_stochattn.core.errors import InputError

# Measure → heading, number of decimals, and factor: ECE is shown in percent, as in the paper.
MEASURES = {
    "accuracy": ("accuracy", 2, 1.0),
    "ece": ("ECE", 2, 100.0),
    "pavpu": ("PAvPU", 2, 100.0),
}
PLACES = ("in", "out")


def read_values(paths: Sequence[Path]) -> dict[str, dict[tuple[str, str], list[float]]]:
    """Return method → (measure, place) → the values of all seeds."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for path in paths:
        for checkpoint in read_evaluation(path)["checkpoints"]:
            outside = (checkpoint.get("out_of_domain") or {}).get("metrics")
            if not outside:
                raise InputError(f"{path} has no metrics out of domain: that set has no labels")
            name = re.sub(r"-seed\d+$", "", str(checkpoint.get("name")))
            for measure, (_, _, factor) in MEASURES.items():
                for place, values in zip(PLACES, (checkpoint["metrics"], outside), strict=True):
                    if values.get(measure) is None:
                        raise InputError(f"{path}: {name} has no {measure}")
                    cell = found.setdefault(name, {}).setdefault((measure, place), [])
                    cell.append(factor * values[measure])
    return found


def as_table(found: dict[str, dict[tuple[str, str], list[float]]]) -> str:
    """One line per method; with several seeds mean ± standard deviation."""
    keys = [(measure, place) for measure in MEASURES for place in PLACES]
    rows = [["", *(f"{MEASURES[measure][0]} {place}" for measure, place in keys)]]
    for name, values in found.items():
        cells = [_cell(values[key], MEASURES[key[0]][1]) for key in keys]
        rows.append([name, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )


def _cell(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def build_parser() -> OneLineParser:
    parser = OneLineParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="files of stochattn-evaluate --json")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Read the files and print the table."""
    print(as_table(read_values(build_parser().parse_args(argv).files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
