"""Prepare CLINC150: requests with 150 intents, 15,000 / 3,000 / 4,500, and out-of-scope requests.

Example: stochattn-prepare clinc150 --out data-bin/clinc150
In a clone, python data-prep/prepare_clinc150.py takes the same flags.

The corpus also has 100 / 100 / 1,000 out-of-scope requests, which belong to none of the intents. By
default the out-of-scope requests of train are left out, and those of valid and test become the
splits valid_oos and test_oos without labels. Use these splits with
stochattn-evaluate DATA --out-of-domain-subset test_oos. With --oos-class, out-of-scope requests
become class 151, oos, in train, valid and test. Classes: the intents in alphabetical order. No
checksum is published for data_full.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from steps.command import main_of, source_files
from steps.errors import PrepError
from steps.examples import Example, classification
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import read_json

REMOTE = Remote("https://raw.githubusercontent.com/clinc/oos-eval/master/data/data_full.json")
SPLITS = {"train": "train", "valid": "val", "test": "test"}
OOS = "oos"


def read_corpus(path: Path) -> dict[str, list[list[str]]]:
    """Return the lists of [text, intent] in data_full.json, by name."""
    corpus = read_json(TextFile(path))
    for name in (x for split in SPLITS.values() for x in (split, f"{OOS}_{split}")):
        rows = corpus.get(name) if isinstance(corpus, dict) else None
        if not isinstance(rows, list):
            raise PrepError(f"{path} has no list {name!r}")
        for row in rows:
            if not (isinstance(row, list) and [type(x) for x in row] == [str, str]):
                raise PrepError(f"{path}: an entry of {name!r} is not [text, intent]")
    return corpus


def convert(row: list[str], oos_class: bool) -> Example:
    text, intent = row
    return (text,), None if intent == OOS and not oos_class else intent


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--oos-class", action="store_true", help="make out-of-scope requests class 151"
    )
    args = parser.parse_args(argv)
    path = source_files([REMOTE], args)[REMOTE.name]
    corpus = read_corpus(path)
    rows = {}
    for split, name in SPLITS.items():
        rows[split], outside = corpus[name], corpus[f"{OOS}_{name}"]
        if args.oos_class:
            rows[split] = rows[split] + outside
        elif split != "train":
            rows[f"{split}_{OOS}"] = outside
    tables = {split: (lambda report, table=table: table) for split, table in rows.items()}
    intents = sorted({intent for _, intent in corpus["train"]})
    spec = classification(*intents, *[OOS] * args.oos_class)
    prepare_corpus(args, spec, [path], tables, partial(convert, oos_class=args.oos_class))


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
