"""IMDB, long film reviews, positive or negative: 25,000 for training, 25,000 for the test.

python data-prep/prepare_imdb.py --out data-bin/imdb [--from FOLDER] [--model-from MODEL]
The corpus has no validation set: --valid-share 40 of 1,000 training reviews become one, chosen by
their hash. Line breaks (<br />) become spaces. Classes: neg, pos.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of, positive, sources
from steps.examples import Example, classes
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.tables import carved, read_members

REMOTE = Remote(
    "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
SHAPE = classes("neg", "pos")
REVIEW = "aclImdb/{}/(neg|pos)/[0-9_]+[.]txt"


def example(row: tuple[str, str]) -> Example:
    name, text = row
    return (re.sub("<br ?/?>", " ", text),), name.split("/")[-2]


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--valid-share", type=positive, default=40, help="of 1,000 reviews")
    args = parser.parse_args(argv)
    archive = sources([REMOTE], args)[REMOTE.name]
    train, test = (
        partial(read_members, archive, wanted=re.compile(REVIEW.format(split)).fullmatch)
        for split in ("train", "test")
    )
    tables = {**carved(train, lambda row: row[1], {"valid": args.valid_share}), "test": test}
    prepare_corpus(args, SHAPE, [archive], tables, example, valid_share=args.valid_share)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
