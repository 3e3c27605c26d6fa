"""Prepare ANLI: adversarial inference, rounds 1-3 with 16,946 / 45,460 / 100,459 training pairs.

Example: stochattn-prepare anli --out data-bin/anli --round 1
In a clone, python data-prep/prepare_anli.py takes the same flags.

In rounds 1-3, the validation set and the test set have 1,000 / 1,000 / 1,200 pairs each. Classes:
contradiction, neutral, entailment (the order of fairseq's roberta.large.mnli).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from steps.command import main_of, source_files
from steps.examples import Example, classification
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import concatenate, read_json_lines

REMOTE = Remote(
    "https://dl.fbaipublicfiles.com/anli/anli_v0.1.zip",
    "16ac929a7e90ecf9093deaec89cc81fe86a379265a5320a150028efe50c5cde8",
)
LABELS = {"c": "contradiction", "n": "neutral", "e": "entailment"}
SPEC = classification(*LABELS.values(), inputs=2)
SPLITS = {"train": "train", "valid": "dev", "test": "test"}
ROUNDS = ("1", "2", "3")


def convert(row: dict[str, Any]) -> Example:
    return (row["context"], row["hypothesis"]), LABELS.get(row["label"], row["label"])


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--round",
        choices=(*ROUNDS, "all"),
        default="all",
        help="round of data collection to prepare, default: %(default)s",
    )
    args = parser.parse_args(argv)
    archive = source_files([REMOTE], args)[REMOTE.name]
    rounds = ROUNDS if args.round == "all" else (args.round,)
    tables = {
        split: concatenate(
            partial(read_json_lines, TextFile(archive, f"anli_v0.1/R{number}/{name}.jsonl"))
            for number in rounds
        )
        for split, name in SPLITS.items()
    }
    prepare_corpus(args, SPEC, [archive], tables, convert, rounds=list(rounds))


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
