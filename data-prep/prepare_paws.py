"""Prepare PAWS-Wiki (labeled_final): paraphrases with swapped words, 49,401 / 8,000 / 8,000 pairs.

Example: stochattn-prepare paws --out data-bin/paws
In a clone, python data-prep/prepare_paws.py takes the same flags.

Classes: 0 (different meaning), 1 (paraphrase).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of
from steps.examples import Example, classification
from steps.fetch import Remote
from steps.finetuning_command import prepare_archive
from steps.tables import read_tsv

REMOTE = Remote(
    "https://storage.googleapis.com/paws/english/paws_wiki_labeled_final.tar.gz",
    "5b132e9b0a070b4413736337da8513b2e798e1beae1cbcc7a544a7cab5322ebc",
)
SPEC = classification("0", "1", inputs=2)
MEMBERS = {"train": "final/train.tsv", "valid": "final/dev.tsv", "test": "final/test.tsv"}


def convert(row: dict[str, str]) -> Example:
    return (row["sentence1"], row["sentence2"]), row["label"]


def run(argv: Sequence[str] | None) -> None:
    read = partial(read_tsv, key="sentence1")
    prepare_archive(__doc__, argv, SPEC, REMOTE, MEMBERS, read, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
