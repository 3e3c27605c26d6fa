"""Prepare PAN 2016 author profiling: age groups of 436 authors of English tweets, 5 classes.

Example: stochattn-prepare age --from FOLDER --out data-bin/age
In a clone, python data-prep/prepare_age.py takes the same flags.

PAN distributes the corpus only to registered users, so it cannot be downloaded here. FOLDER must
contain truth.txt, with lines AUTHOR:::GENDER:::AGE, and one file AUTHOR.xml per author. Each tweet
is one example. The corpus has no official split. By default, 52 of 1,000 tweets become the
validation set and another 52 the test set; the hash of a tweet decides. Each set then has about
4,000 tweets, as in published results, where the sets share authors. With --split-by author the sets
do not share authors.
Classes: 18-24, 25-34, 35-49, 50-64, 65-xx.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from steps.command import main_of
from steps.errors import PrepError
from steps.examples import Example, classification
from steps.finetuning_command import first_existing, parser_for, prepare_corpus
from steps.lines import Report, TextFile, read_lines
from steps.tables import split_by_hash

SPEC = classification("18-24", "25-34", "35-49", "50-64", "65-xx")
SHARES = {"valid": 52, "test": 52}


def read_tweets(truth: Path, report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield author, age group and text of every tweet."""
    for line in read_lines(TextFile(truth), report):
        columns = (line or "").strip().split(":::")
        if len(columns) < 3:
            report.dropped["author without gender and age"] += bool(line)
            continue
        author, age = columns[0], columns[2].lower()
        try:
            documents = ElementTree.parse(truth.parent / f"{author}.xml").iter("document")
        except FileNotFoundError:
            report.dropped["author without a file"] += 1
        except ElementTree.ParseError:
            report.dropped["author whose file is not XML"] += 1
        else:
            for document in documents:
                yield author, "65-xx" if age.startswith("65") else age, document.text or ""


def convert(row: tuple[str, str, str]) -> Example:
    without_tags = re.sub("</?[a-zA-Z][^<>]*>", " ", row[2])
    return (html.unescape(without_tags),), row[1]


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, downloads=False)
    parser.add_argument(
        "--split-by",
        choices=("tweet", "author"),
        default="tweet",
        help="assign single tweets, or all tweets of an author, to a split; default: %(default)s",
    )
    args = parser.parse_args(argv)
    truth = first_existing(args.origin, ["truth.txt"])
    files = sorted(args.origin.glob("*.xml"))
    if not files:
        raise PrepError(f"{args.origin} has truth.txt, but no file AUTHOR.xml")
    column = 0 if args.split_by == "author" else 2
    tables = split_by_hash(partial(read_tweets, truth), lambda row: row[column], SHARES)
    prepare_corpus(args, SPEC, [truth, *files], tables, convert, split_by=args.split_by)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
