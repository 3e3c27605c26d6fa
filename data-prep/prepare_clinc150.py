"""CLINC150, requests to an assistant with 150 intents: 15,000 / 3,000 / 4,500, out-of-scope apart.

python data-prep/prepare_clinc150.py --out data-bin/clinc150 [--from FOLDER] [--oos-class]
The 100 + 100 + 1,000 out-of-scope requests are no class: those of valid and test become the splits
valid_oos and test_oos, inputs only, for stochattn-evaluate DATA --out-of-domain-subset test_oos;
those of train are left out. With --oos-class they are class 151, ``oos``, in train, valid and test.
Classes: the intents in alphabetical order. No checksum is published for data_full.json; it is small
and read as a whole.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from steps.command import main_of, sources
from steps.errors import PrepError
from steps.examples import Example, classes
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import read_json

REMOTE = Remote("https://raw.githubusercontent.com/clinc/oos-eval/master/data/data_full.json")
SPLITS = {"train": "train", "valid": "val", "test": "test"}
OOS = "oos"


def read_corpus(path: Path) -> dict[str, list[list[str]]]:
    corpus = read_json(TextFile(path))
    for name in (x for split in SPLITS.values() for x in (split, f"{OOS}_{split}")):
        rows = corpus.get(name) if isinstance(corpus, dict) else None
        if not isinstance(rows, list):
            raise PrepError(f"{path} has no list {name}")
        for row in rows:
            if not (isinstance(row, list) and [type(x) for x in row] == [str, str]):
                raise PrepError(f"{path}: {name} has an entry that is not a text and an intent")
    return corpus


def example(row: list[str], oos_class: bool) -> Example:
    text, intent = row
    return (text,), None if intent == OOS and not oos_class else intent


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--oos-class", action="store_true", help="out of scope as a 151st class")
    args = parser.parse_args(argv)
    path = sources([REMOTE], args)[REMOTE.name]
    corpus = read_corpus(path)
    rows = {}
    for split, name in SPLITS.items():
        rows[split], outside = corpus[name], corpus[f"{OOS}_{name}"]
        if args.oos_class:
            rows[split] = rows[split] + outside
        elif split != "train":
            rows[f"{split}_{OOS}"] = outside
    tables = {split: (lambda report, found=found: found) for split, found in rows.items()}
    shape = classes(*sorted({intent for _, intent in corpus["train"]}), *[OOS] * args.oos_class)
    prepare_corpus(args, shape, [path], tables, partial(example, oos_class=args.oos_class))


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
