"""Yelp reviews by stars (full: 650,000 / 50,000) or as bad and good (polarity: 560,000 / 38,000).

python data-prep/prepare_yelp.py --out data-bin/yelp [--task full|polarity] [--from FOLDER]
The corpus has no validation set: --valid-share 15 of 1,000 training reviews become one, chosen by
their hash. Classes: 1 to 5 stars; polarity: 1 (bad), 2 (good).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from steps.command import main_of, positive, sources
from steps.examples import Example, classes
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import TextFile
from steps.tables import carved, read_csv

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
SHAPES = {"full": classes("1", "2", "3", "4", "5"), "polarity": classes("1", "2")}


def example(row: dict[str, str]) -> Example:
    # The files write a line break as a backslash and an n, and a backslash before some quotes.
    return (row["text"].replace("\\n", " ").replace('\\"', '"'),), row["stars"]


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--task", choices=tuple(SHAPES), default="full")
    parser.add_argument("--valid-share", type=positive, default=15, help="of 1,000 reviews")
    args = parser.parse_args(argv)
    remote = REMOTES[args.task]
    archive = sources([remote], args)[remote.name]
    train, test = (
        partial(
            read_csv,
            TextFile(archive, f"yelp_review_{args.task}_csv/{split}.csv"),
            names=("stars", "text"),
        )
        for split in ("train", "test")
    )
    tables = {**carved(train, lambda row: row["text"], {"valid": args.valid_share}), "test": test}
    prepare_corpus(
        args, SHAPES[args.task], [archive], tables, example, valid_share=args.valid_share
    )


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
