"""Prepare SQuAD 1.1 or 2.0: questions about paragraphs of Wikipedia, 87,599 / 130,319 in train.

Example: stochattn-prepare squad --version 2.0 --out data-bin/squad --model-from imported
In a clone, python data-prep/prepare_squad.py takes the same flags.

A paragraph that is longer than --max-length tokens together with its question and the special
tokens is cut into windows, which begin every --stride subwords. The official test set is not
public: the development set becomes the validation set. With --holdout N, every N-th article of the
training set becomes the validation set and the development set the test set. With --articles A B C,
only the development set is used, and it is split by article: its first A articles are the training
set, the next B the validation set and the next C the test set. --answerable leaves out the
questions without an answer, so that the files of SQuAD 2.0 give the task of SQuAD 1.1. The files of
--from may be packed (dev-v2.0.json.gz).
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steps.command import build_output, main_of, positive_int, source_files
from steps.errors import PrepError
from steps.fetch import Remote
from steps.finetuning_command import encoding_of, first_existing, parser_for
from steps.lines import TextFile
from steps.question_answering import Windows, prepare, summary
from steps.questions import Article, read_articles

ADDRESS = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
REMOTES = {
    "1.1": {
        "train": Remote(
            f"{ADDRESS}/train-v1.1.json",
            "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
        ),
        "dev": Remote(
            f"{ADDRESS}/dev-v1.1.json",
            "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
        ),
    },
    "2.0": {
        "train": Remote(
            f"{ADDRESS}/train-v2.0.json",
            "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
        ),
        "dev": Remote(
            f"{ADDRESS}/dev-v2.0.json",
            "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
        ),
    },
}
PARTS = ("train", "valid", "test")
LEAST = 16  # subwords of a context that fit into a window beside the longest question


def find_files(args: Namespace) -> dict[str, Path]:
    """Return the files of the corpus by name: in --from, packed or not, or downloaded."""
    remotes = REMOTES[args.version]
    names = ["dev"] if args.articles else ["train", "dev"]
    if args.origin is None:
        found = source_files([remotes[name] for name in names], args)
        return {name: found[remotes[name].name] for name in names}
    endings = ("", ".gz", ".bz2", ".xz")
    return {
        name: first_existing(args.origin, (remotes[name].name + end for end in endings))
        for name in names
    }


def split_articles(files: dict[str, Path], args: Namespace) -> dict[str, list[Article]]:
    """Return the articles of each split."""
    dev = read_articles(TextFile(files["dev"]))
    if args.articles:
        return _by_number(dev, args.articles, files["dev"])
    train = read_articles(TextFile(files["train"]))
    if not args.holdout:
        return {"train": train, "valid": dev}
    held_out = [x for number, x in enumerate(train, 1) if number % args.holdout == 0]
    if not held_out:
        raise PrepError(f"--holdout {args.holdout}: {files['train']} has {len(train)} articles")
    kept = [x for number, x in enumerate(train, 1) if number % args.holdout]
    return {"train": kept, "valid": held_out, "test": dev}


def _by_number(
    articles: Sequence[Article], numbers: Sequence[int], file: Path
) -> dict[str, list[Article]]:
    if sum(numbers) > len(articles):
        raise PrepError(
            f"--articles {' '.join(map(str, numbers))}: {file} has {len(articles)} articles"
        )
    splits, start = {}, 0
    for split, number in zip(PARTS, numbers, strict=True):
        if number:
            splits[split] = list(articles[start : start + number])
        start += number
    return splits


def answerable(article: Article) -> Article:
    """Return an article without the questions that have no answer."""
    paragraphs = (
        replace(part, questions=tuple(x for x in part.questions if x.answers != ()))
        for part in article.paragraphs
    )
    return replace(article, paragraphs=tuple(paragraphs))


def not_negative(text: str) -> int:
    """Parse a whole number of at least 0, for argparse."""
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def check(args: Namespace, room: int) -> None:
    """Raise ``PrepError`` for flags that do not fit together; ``room`` is that of a window."""
    if args.holdout == 1:
        raise PrepError("--holdout 1 leaves no training article: take 2 or more")
    if args.holdout and args.articles:
        raise PrepError("--holdout and --articles are two ways to split: give one of them")
    if args.articles and 0 in args.articles[:2]:
        raise PrepError("--articles A B C: A and B must be at least 1")
    least = room - args.max_question
    if least < LEAST:
        raise PrepError(
            f"--max-length {args.max_length} leaves {least} subwords for the context beside a "
            f"question of --max-question {args.max_question}: at least {LEAST} are needed"
        )
    if args.stride > least:
        raise PrepError(
            f"--stride {args.stride}: windows of {least} subwords would leave gaps; lower it, or "
            "raise --max-length"
        )


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.set_defaults(max_length=384)
    add = parser.add_argument
    add("--version", choices=tuple(REMOTES), default="2.0", help="default: %(default)s")
    add(
        "--stride",
        type=positive_int,
        default=128,
        metavar="N",
        help="number of subwords from the start of one window to that of the next, default: "
        "%(default)s",
    )
    add(
        "--max-question",
        type=positive_int,
        default=64,
        metavar="N",
        help="cut questions to N subwords, default: %(default)s",
    )
    add(
        "--answerable",
        action="store_true",
        help="leave out the questions without an answer",
    )
    add(
        "--holdout",
        type=positive_int,
        default=0,
        metavar="N",
        help="make every N-th training article the validation set, and the development set the "
        "test set",
    )
    add(
        "--articles",
        type=not_negative,
        nargs=3,
        metavar=("A", "B", "C"),
        help="split the development set alone: its first A articles for training, then B for "
        "validation and C for testing",
    )
    args = parser.parse_args(argv)
    if args.halve:
        raise PrepError("--halve is not for SQuAD: --holdout and --articles split it by article")
    encoding = encoding_of(args)
    check(args, encoding.room(2))
    files = find_files(args)
    windows = Windows(args.stride, args.max_question)
    arguments = {
        "version": args.version,
        "subwords": encoding.kind,
        "size": args.size if encoding.dictionary is None else None,
        "max_length": args.max_length,
        "stride": args.stride,
        "max_question": args.max_question,
        "lowercase": encoding.lowercase,
        "holdout": args.holdout,
        "articles": args.articles,
        "answerable": args.answerable,
    }
    model = [x for x in (encoding.model, *encoding.files, encoding.dictionary) if x is not None]

    def build(folder: Path) -> dict[str, Any]:
        splits = split_articles(files, args)
        if args.answerable:
            splits = {name: list(map(answerable, part)) for name, part in splits.items()}
        return prepare(splits, encoding, windows, folder, args.workers, args.keep_text)

    build_output(args, arguments, [*files.values(), *model], build, summary)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
