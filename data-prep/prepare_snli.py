"""Prepare SNLI: does a sentence follow from an image caption? 549,367 / 9,842 / 9,824 pairs.

Example: stochattn-prepare snli --out data-bin/snli
In a clone, python data-prep/prepare_snli.py takes the same flags.

Classes: contradiction, neutral, entailment (the order of fairseq's roberta.large.mnli). Pairs on
which the annotators did not agree (label "-", 785 in train) are dropped and counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from steps.command import main_of
from steps.examples import Example, classification
from steps.fetch import Remote
from steps.finetuning_command import prepare_archive
from steps.tables import read_json_lines

REMOTE = Remote(
    "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
    "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
)
SPEC = classification("contradiction", "neutral", "entailment", inputs=2)
MEMBERS = {
    split: f"snli_1.0/snli_1.0_{name}.jsonl"
    for split, name in (("train", "train"), ("valid", "dev"), ("test", "test"))
}


def convert(row: dict[str, Any]) -> Example | str:
    if row["gold_label"] == "-":
        return "without an agreed label"
    return (row["sentence1"], row["sentence2"]), row["gold_label"]


def run(argv: Sequence[str] | None) -> None:
    prepare_archive(__doc__, argv, SPEC, REMOTE, MEMBERS, read_json_lines, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
