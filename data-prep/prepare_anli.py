"""ANLI, inference written to fool models, rounds 1-3: 16,946 / 45,460 / 100,459 training pairs.

python data-prep/prepare_anli.py --out data-bin/anli [--round 1|2|3|all] [--from FOLDER]
Held-out sets: 1,000 / 1,000 / 1,200 pairs a round, each for valid and test. Classes: contradiction,
neutral, entailment (the order of fairseq's roberta.large.mnli).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from steps.command import main_of, sources
from steps.examples import Example, classes
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import concatenated, read_json_lines

REMOTE = Remote(
    "https://dl.fbaipublicfiles.com/anli/anli_v0.1.zip",
    "16ac929a7e90ecf9093deaec89cc81fe86a379265a5320a150028efe50c5cde8",
)
LABELS = {"c": "contradiction", "n": "neutral", "e": "entailment"}
SHAPE = classes(*LABELS.values(), inputs=2)
SPLITS = {"train": "train", "valid": "dev", "test": "test"}
ROUNDS = ("1", "2", "3")


def example(row: dict[str, Any]) -> Example:
    return (row["context"], row["hypothesis"]), LABELS.get(row["label"], row["label"])


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--round", choices=(*ROUNDS, "all"), default="all")
    args = parser.parse_args(argv)
    archive = sources([REMOTE], args)[REMOTE.name]
    rounds = ROUNDS if args.round == "all" else (args.round,)
    tables = {
        split: concatenated(
            partial(read_json_lines, TextFile(archive, f"anli_v0.1/R{number}/{name}.jsonl"))
            for number in rounds
        )
        for split, name in SPLITS.items()
    }
    prepare_corpus(args, SHAPE, [archive], tables, example, rounds=list(rounds))


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
