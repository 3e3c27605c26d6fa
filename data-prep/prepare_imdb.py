"""Prepare IMDB: long film reviews, positive or negative, 25,000 for training and 25,000 for test.

Example: stochattn-prepare imdb --out data-bin/imdb
In a clone, python data-prep/prepare_imdb.py takes the same flags.

The corpus has no validation set, so --valid-share N moves N of 1,000 training reviews to one. The
hash of a review decides. Line breaks (<br />) become spaces. Classes: neg, pos.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of, positive_int, source_files
from steps.examples import Example, classification
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.tables import read_members, split_by_hash

REMOTE = Remote(
    "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
SPEC = classification("neg", "pos")
REVIEW = "aclImdb/{}/(neg|pos)/[0-9_]+[.]txt"


def convert(row: tuple[str, str]) -> Example:
    name, text = row
    return (re.sub("<br ?/?>", " ", text),), name.split("/")[-2]


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--valid-share",
        type=positive_int,
        default=40,
        help="training reviews per 1,000 that become the validation set, default: %(default)s",
    )
    args = parser.parse_args(argv)
    archive = source_files([REMOTE], args)[REMOTE.name]
    train, test = (
        partial(read_members, archive, wanted=re.compile(REVIEW.format(split)).fullmatch)
        for split in ("train", "test")
    )
    tables = {**split_by_hash(train, lambda row: row[1], {"valid": args.valid_share}), "test": test}
    prepare_corpus(args, SPEC, [archive], tables, convert, valid_share=args.valid_share)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
