"""Prepare SWAG: choose one of four endings for a scene, 73,546 / 20,006 labelled questions.

Example: stochattn-prepare swag --out data-bin/swag
In a clone, python data-prep/prepare_swag.py takes the same flags.

The context is the scene with the beginning of a sentence, and the options are endings of this
sentence. The test set has no labels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from steps.command import main_of
from steps.examples import Example, multiple_choice
from steps.finetuning_command import prepare_files, remotes_at
from steps.tables import read_csv

ADDRESS = "https://raw.githubusercontent.com/rowanz/swagaf/master/data"
REMOTES = remotes_at(
    ADDRESS,
    train=("train.csv", "5748b51126ac255c5a6f26e1ba473b51116d6c822aeb25e63ecba282c9d0e610"),
    valid=("val.csv", "c0497b2cd7f3e6b7df995524b1853f62285d60d110d659b19545ca80b2903234"),
    test=("test.csv", "a689a1a4e892a65ca625c1f0fcf77bcce004b59ad1caeb134ca5ec080a711cb6"),
)
SPEC = multiple_choice(4)


def convert(row: dict[str, str]) -> Example:
    return (row["startphrase"], *(row[f"ending{i}"] for i in range(4))), row.get("label")


def run(argv: Sequence[str] | None) -> None:
    prepare_files(__doc__, argv, SPEC, REMOTES, read_csv, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
