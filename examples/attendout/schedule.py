"""Turn the dropout probabilities of an AttendOut run into a schedule of random dropout.

    python examples/attendout/schedule.py LOG [--points 3]

LOG is the output of fairseq-train (``--log-format simple`` or ``json``) or its folder of
tensorboard files. Prints the flag ``--cell-dropout`` with one piecewise linear schedule per layer
(Wu et al. 2021, §7.2 and Table 4), fitted to ``drop_<site>_<layer>`` by least squares:

    fairseq-train … --arch roberta_cell_dropout $(python examples/attendout/schedule.py LOG)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fairseq_stochattn.analysis.training_log import Series, TrainingLog, read_log
from fairseq_stochattn.commands.command import OneLineParser, command
from fairseq_stochattn.core.errors import InputError


def fit(series: Series, points: int) -> list[tuple[int, float]]:
    """(update, probability) at equal distances, the best piecewise linear fit of the series."""
    updates, values = np.asarray(series.updates, float), np.asarray(series.values, float)
    knots = np.unique(np.linspace(updates[0], updates[-1], points).round())
    # A column per knot: the piecewise linear function that is 1 there and 0 at the others.
    basis = np.stack([np.interp(updates, knots, unit) for unit in np.eye(len(knots))], axis=1)
    heights = np.linalg.lstsq(basis, values, rcond=None)[0].clip(0, 0.999)
    return [(int(update), float(p)) for update, p in zip(knots, heights, strict=True)]


def schedules(log: TrainingLog, site: str, points: int) -> str:
    """The value of ``--cell-dropout``: one schedule per layer, joined by ``/``."""
    layers = log.layers().get(("drop", site), [])
    if not layers or layers != list(range(len(layers))):
        raise InputError(f"the log has no drop_{site}_<layer> of all layers: it is not attendout's")
    found = [log.trained(f"drop_{site}_{layer}") for layer in layers]
    fitted = (fit(series, points) for series in found)
    return "/".join(",".join(f"{update}:{p:.3g}" for update, p in layer) for layer in fitted)


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path, help="log of a training with --criterion attendout")
    parser.add_argument("--site", choices=("encoder", "decoder"), default="encoder")
    parser.add_argument("--points", type=int, default=3, help="points of a schedule (default 3)")
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if args.points < 1:
        raise InputError(f"--points {args.points}: must be at least 1")
    print("--cell-dropout", schedules(read_log([args.log]), args.site, args.points))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
