"""Prepare CoNLL-2003: named entities in English news, 14,041 / 3,250 / 3,453 tagged sentences.

Example: stochattn-prepare conll2003 --from FOLDER --out data-bin/conll2003
In a clone, python data-prep/prepare_conll2003.py takes the same flags.

Reuters licenses the text, so it cannot be downloaded here. FOLDER must contain eng.train, eng.testa
and eng.testb, or train.txt, valid.txt and test.txt. The shared task marks the first word of an
entity with I-, unless an entity of the same type ends directly before it. This script marks the
first word of every entity with B-, as in WNUT-17, so files with such tags are not changed. The
first subword of a word has the tag of the word; the others have <ignore>.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of
from steps.examples import Example, tagging
from steps.finetuning_command import first_existing, parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import read_conll

NAMES = {
    "train": ("eng.train", "train.txt"),
    "valid": ("eng.testa", "valid.txt", "dev.txt"),
    "test": ("eng.testb", "test.txt"),
}
SPEC = tagging(("LOC", "MISC", "ORG", "PER"))


def with_begin_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags with B- at the first word of every entity."""
    converted = []
    for previous, tag in zip(["O", *tags], tags, strict=False):
        begins = tag.startswith("I-") and previous[2:] != tag[2:]
        converted.append(f"B-{tag[2:]}" if begins else tag)
    return converted


def convert(row: tuple[list[str], list[str]]) -> Example:
    return row[0], with_begin_tags(row[1])


def run(argv: Sequence[str] | None) -> None:
    args = parser_for(__doc__, downloads=False).parse_args(argv)
    files = {split: first_existing(args.origin, names) for split, names in NAMES.items()}
    tables = {split: partial(read_conll, TextFile(path)) for split, path in files.items()}
    prepare_corpus(args, SPEC, list(files.values()), tables, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
