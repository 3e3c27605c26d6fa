"""Prepare HellaSWAG: choose one of four endings for a text, 39,905 / 10,042 / 10,003 questions.

Example: stochattn-prepare hellaswag --out data-bin/hellaswag
In a clone, python data-prep/prepare_hellaswag.py takes the same flags.

The test set has no labels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from steps.command import main_of
from steps.examples import Example, multiple_choice
from steps.finetuning_command import prepare_files, remotes_at
from steps.tables import read_json_lines

ADDRESS = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data"
REMOTES = remotes_at(
    ADDRESS,
    train=(
        "hellaswag_train.jsonl",
        "dae5e69249868cb9fe4e23ff925c60b66169564cfb7072d793cd7356a2b69f8d",
    ),
    valid=(
        "hellaswag_val.jsonl",
        "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588",
    ),
    test=(
        "hellaswag_test.jsonl",
        "da082b00543e422b8d25394614d102944586986def4de5cd1bd36d86bcb76261",
    ),
)
SPEC = multiple_choice(4)


def convert(row: dict[str, Any]) -> Example:
    label = row.get("label")
    return (row["ctx"], *row["endings"]), None if label in (None, "") else str(label)


def run(argv: Sequence[str] | None) -> None:
    prepare_files(__doc__, argv, SPEC, REMOTES, read_json_lines, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
