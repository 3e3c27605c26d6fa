"""Age groups of authors of English tweets (PAN 2016 author profiling): 436 authors, 5 classes.

python data-prep/prepare_age.py --from FOLDER --out data-bin/age [--split-by tweet|author]
PAN gives the corpus to those who register, so there is no download: FOLDER holds truth.txt with
lines AUTHOR:::GENDER:::AGE and a file AUTHOR.xml for each. The example is one tweet. The corpus has
no split; 52 of 1,000 tweets each become valid and test, chosen by hash: near the 4,000 of each in
published results, which share authors between the sets. --split-by author shares none.
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
from steps.examples import Example, classes
from steps.finetuning_command import first_of, parser_for, prepare_corpus
from steps.lines import Report, TextFile, read_lines
from steps.tables import carved

SHAPE = classes("18-24", "25-34", "35-49", "50-64", "65-xx")
SHARES = {"valid": 52, "test": 52}


def read_tweets(truth: Path, report: Report) -> Iterator[tuple[str, str, str]]:
    """Author, age group and text."""
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


def example(row: tuple[str, str, str]) -> Example:
    plain = re.sub("</?[a-zA-Z][^<>]*>", " ", row[2])
    return (html.unescape(plain),), row[1]


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, downloads=False)
    parser.add_argument("--split-by", choices=("tweet", "author"), default="tweet")
    args = parser.parse_args(argv)
    truth = first_of(args.origin, ["truth.txt"])
    files = sorted(args.origin.glob("*.xml"))
    if not files:
        raise PrepError(f"{args.origin} has no XML files beside truth.txt")
    column = 0 if args.split_by == "author" else 2
    tables = carved(partial(read_tweets, truth), lambda row: row[column], SHARES)
    prepare_corpus(args, SHAPE, [truth, *files], tables, example, split_by=args.split_by)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
