"""Print the mean and the standard deviation of each metric over several runs.

    python examples/glue/summary.py OUT/MRPC/asa-seed1.valid.txt OUT/MRPC/asa-seed2.valid.txt …

Each file is what ``stochattn-predict`` printed: one name and one number per line.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from fairseq_stochattn.commands.command import OneLineParser, command
from fairseq_stochattn.core.errors import InputError

NOT_METRICS = ("subset", "examples", "metrics")


def read(path: Path) -> dict[str, float]:
    """The metrics in a file, by name."""
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    try:
        return {name: float(value) for name, value in lines if name not in NOT_METRICS}
    except ValueError:
        raise InputError(f"{path} is not the output of stochattn-predict") from None


def table(runs: list[dict[str, float]]) -> list[str]:
    """One line per metric: its mean, standard deviation (n − 1) and values."""
    lines = []
    for name in runs[0]:
        values = [run[name] for run in runs if name in run]
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        lines.append(f"{name}\t{mean(values):.2f}{spread}\t({', '.join(map(str, values))})")
    return lines


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="outputs of stochattn-predict")
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    args = build_parser().parse_args(argv)
    print("\n".join(table([read(path) for path in args.files])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
