"""Prepare DREAM: questions about a dialogue with three answers each, 6,116 / 2,040 / 2,041.

Example: stochattn-prepare dream --out data-bin/dream
In a clone, python data-prep/prepare_dream.py takes the same flags.

The context is the dialogue followed by the question. A dialogue that is too long (--max-length)
loses its first turns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from steps.command import main_of
from steps.errors import PrepError
from steps.examples import Example, multiple_choice
from steps.finetuning_command import prepare_files, remotes_at
from steps.lines import Report, TextFile
from steps.tables import read_json

ADDRESS = "https://raw.githubusercontent.com/nlpdata/dream/master/data"
REMOTES = remotes_at(
    ADDRESS,
    train=("train.json", "90942ddea1b56231a0ad2097dc5f115ce1face1cfb86f029041e5bad38e68566"),
    valid=("dev.json", "9d5af2e580d809c73872a7dd43fe93d0b07c6f6086b04a9a9a1917603009d961"),
    test=("test.json", "d96d7d0752f7eab1ea8f165a582430f35653c428d36633ab4d7f26fc14946c3a"),
)
SPEC = replace(multiple_choice(3), keep_end=True)


def read_questions(file: TextFile, report: Report) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the turns of a dialogue and one question, from entries [turns, questions, id]."""
    entries = read_json(file)
    if not isinstance(entries, list):
        raise PrepError(f"{file} is not a list of dialogues")
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[1], list)):
            report.dropped["entry that is not dialogue, questions and name"] += 1
            continue
        for question in entry[1]:
            yield entry[0], question


def convert(row: tuple[list[str], dict[str, Any]]) -> Example | str:
    turns, question = row
    options = question["choice"]
    if question["answer"] not in options:
        return "answer that is none of the options"
    context = " ".join([*turns, question["question"]])
    return (context, *options), str(options.index(question["answer"]))


def run(argv: Sequence[str] | None) -> None:
    prepare_files(__doc__, argv, SPEC, REMOTES, read_questions, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
