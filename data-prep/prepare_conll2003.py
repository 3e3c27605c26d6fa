"""CoNLL-2003, English entities in news: 14,041 / 3,250 / 3,453 sentences with tagged words.

python data-prep/prepare_conll2003.py --from FOLDER --out data-bin/conll2003 [--model-from MODEL]
The text is licensed by Reuters, so there is no download: FOLDER holds eng.train, eng.testa and
eng.testb, or train.txt, valid.txt and test.txt. Tags of the shared task (I- opens an entity unless
one of its kind ends right before) become B- and I- as in WNUT-17; files that have them already do
not change. One tag for each subword: see steps/finetuning.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of
from steps.examples import Example, tagging
from steps.finetuning_command import first_of, parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import read_conll

NAMES = {
    "train": ("eng.train", "train.txt"),
    "valid": ("eng.testa", "valid.txt", "dev.txt"),
    "test": ("eng.testb", "test.txt"),
}
SHAPE = tagging(("LOC", "MISC", "ORG", "PER"))


def begun(tags: Sequence[str]) -> list[str]:
    """Tags where every entity begins with B-."""
    found = []
    for before, tag in zip(["O", *tags], tags, strict=False):
        opens = tag.startswith("I-") and before[2:] != tag[2:]
        found.append(f"B-{tag[2:]}" if opens else tag)
    return found


def example(row: tuple[list[str], list[str]]) -> Example:
    return row[0], begun(row[1])


def run(argv: Sequence[str] | None) -> None:
    args = parser_for(__doc__, downloads=False).parse_args(argv)
    files = {split: first_of(args.origin, names) for split, names in NAMES.items()}
    tables = {split: partial(read_conll, TextFile(path)) for split, path in files.items()}
    prepare_corpus(args, SHAPE, list(files.values()), tables, example)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
