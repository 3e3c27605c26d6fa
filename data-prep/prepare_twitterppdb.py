"""Prepare TwitterPPDB (Twitter URL Corpus): do two tweets mean the same? 42,200 / 9,324 pairs.

Example: stochattn-prepare twitterppdb --from FOLDER --out data-bin/twitterppdb
In a clone, python data-prep/prepare_twitterppdb.py takes the same flags.

The authors (Lan et al. 2017) send the corpus on request. FOLDER contains
Twitter_URL_Corpus_train.txt and Twitter_URL_Corpus_test.txt: two tweets, the votes, such as (4, 6),
and an address per line. As its authors say, pairs with at least 4 of 6 votes are paraphrases
(class 1), those with at most 2 are not (class 0), and those with 3 are dropped. The test file
becomes the validation set; --halve makes it a validation and a test set.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of
from steps.errors import PrepError
from steps.examples import Example, classification
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import read_tsv

SPEC = classification("0", "1", inputs=2)
FILES = {"train": "Twitter_URL_Corpus_train.txt", "valid": "Twitter_URL_Corpus_test.txt"}
NAMES = ("first", "second", "votes", "url")
VOTES = re.compile(r"\(\s*([0-6])\s*,\s*6\s*\)")


def convert(row: dict[str, str]) -> Example | str:
    votes = VOTES.fullmatch(row["votes"].strip())
    if votes is None:
        return "row without votes such as (4, 6)"
    number = int(votes[1])
    if number == 3:
        return "undecided: 3 of 6 votes"
    return (row["first"], row["second"]), str(int(number > 3))


def run(argv: Sequence[str] | None) -> None:
    args = parser_for(__doc__, downloads=False).parse_args(argv)
    paths = {split: args.origin / name for split, name in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise PrepError(f"{path} does not exist")
    # The files have no header; no row of theirs has a cell that is just "first".
    read = partial(read_tsv, key="first", names=NAMES)
    tables = {split: partial(read, TextFile(path)) for split, path in paths.items()}
    prepare_corpus(args, SPEC, list(paths.values()), tables, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
