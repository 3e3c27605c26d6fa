"""Prepare Yelp reviews: 1-5 stars (650,000 / 50,000) or negative/positive (560,000 / 38,000).

Example: stochattn-prepare yelp --out data-bin/yelp --task polarity
In a clone, python data-prep/prepare_yelp.py takes the same flags.

The corpus has no validation set, so --valid-share N moves about N of every 1,000 training reviews
to a validation set. The hash of a review decides which. Classes: 1 to 5 (stars); with --task
polarity: 1 (negative), 2 (positive).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of, positive_int, source_files
from steps.examples import Example, classification
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import read_csv, split_by_hash

ADDRESS = "https://s3.amazonaws.com/fast-ai-nlp"
REMOTES = {
    "full": Remote(
        f"{ADDRESS}/yelp_review_full_csv.tgz",
        "56006b0a17a370f1e366504b1f2c3e3754e4a3dda17d3e718a885c552869a559",
    ),
    "polarity": Remote(
        f"{ADDRESS}/yelp_review_polarity_csv.tgz",
        "528f22e286cad085948acbc3bea7e58188416546b0e364d0ae4ca0ce666abe35",
    ),
}
SPECS = {"full": classification("1", "2", "3", "4", "5"), "polarity": classification("1", "2")}


def convert(row: dict[str, str]) -> Example:
    # In these files a line break is written as \n, and some quotes are escaped by a backslash.
    return (row["text"].replace("\\n", " ").replace('\\"', '"'),), row["stars"]


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--task",
        choices=tuple(SPECS),
        default="full",
        help="full: 1 to 5 stars; polarity: negative or positive; default: %(default)s",
    )
    parser.add_argument(
        "--valid-share",
        type=positive_int,
        default=15,
        help="training reviews per 1,000 that become the validation set, default: %(default)s",
    )
    args = parser.parse_args(argv)
    remote = REMOTES[args.task]
    archive = source_files([remote], args)[remote.name]
    train, test = (
        partial(
            read_csv,
            TextFile(archive, f"yelp_review_{args.task}_csv/{split}.csv"),
            names=("stars", "text"),
        )
        for split in ("train", "test")
    )
    tables = {
        **split_by_hash(train, lambda row: row["text"], {"valid": args.valid_share}),
        "test": test,
    }
    prepare_corpus(args, SPECS[args.task], [archive], tables, convert, valid_share=args.valid_share)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
