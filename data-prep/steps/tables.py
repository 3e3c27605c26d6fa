"""Rows of tables as streams: tab- and comma-separated values, JSON, CoNLL; and splits by hash.

A reader gets a file and a report. A row that cannot be used is counted there with its reason and
left out; damage that could shift one row into the next is an error that names file and line.
"""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from steps.duplicates import fingerprint
from steps.errors import PrepError
from steps.lines import Report, TextFile, mend_lines, named_damage, read_lines, read_raw

Table = Callable[[Report], Iterable[Any]]
WRONG_COLUMNS = "wrong number of columns"
OPEN_LINES = 1_000  # lines that one quoted record may span


def read_tsv(
    file: TextFile, report: Report, key: str, names: tuple[str, ...] = (), more: int = 0
) -> Iterator[dict[str, str]]:
    """Rows by column name. Quotes mean nothing: in GLUE's files they are text, often unpaired.

    The first line is a header where one of its cells is ``key``; else the columns are ``names``,
    and ``more`` columns may follow them.
    """
    lines = read_lines(file, report)
    first = next(lines, None)
    if first is None:
        raise PrepError(f"{file} is empty or begins with bytes that are not UTF-8")
    if key in first.split("\t"):
        names, more = tuple(first.split("\t")), 0
    elif names:
        lines = chain([first], lines)
    else:
        raise PrepError(f"{file} has no column {key!r} in its first line")
    for line in lines:
        if line is None:
            continue
        cells = line.split("\t")
        if 0 <= len(cells) - len(names) <= more:
            yield dict(zip(names, cells, strict=False))
        else:
            report.dropped[WRONG_COLUMNS] += 1


def read_csv(
    file: TextFile, report: Report, names: tuple[str, ...] = ()
) -> Iterator[dict[str, str]]:
    """Rows by column name, with quotes; the first line is a header unless ``names`` are given."""
    for record in _csv_records(file, report):
        try:
            cells = next(csv.reader([record], strict=True), [])
        except csv.Error:
            report.dropped["broken quotes"] += 1
            continue
        if not names:
            names = tuple(cells)
        elif len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))
        else:
            report.dropped[WRONG_COLUMNS] += 1


def _csv_records(file: TextFile, report: Report) -> Iterator[str]:
    """Lines put together until their quotes are closed."""
    waiting: list[str] = []
    for line in read_lines(file, report):
        if line is None and not waiting:
            continue
        if line is None or len(waiting) == OPEN_LINES:
            start = report.lines - len(waiting)
            raise PrepError(f"{file}: line {start} opens a quote that nothing readable closes")
        waiting.append(line)
        if sum(part.count('"') for part in waiting) % 2 == 0:
            yield "\n".join(waiting)
            waiting = []
    if waiting:
        start = report.lines - len(waiting) + 1
        raise PrepError(f"{file}: line {start} opens a quote that is never closed")


def read_json_lines(file: TextFile, report: Report) -> Iterator[dict[str, Any]]:
    """One object a line."""
    for line in read_lines(file, report):
        if line is None or not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError:
            report.dropped["not JSON"] += 1


def read_json(file: TextFile) -> Any:
    """A file that is one JSON value; for small corpora only, as all of it is held in memory."""
    try:
        return json.loads(b"\n".join(read_raw(file)))
    except ValueError as error:
        raise PrepError(f"{file} is not JSON: {error}") from None


def read_conll(file: TextFile, report: Report) -> Iterator[tuple[list[str], list[str]]]:
    """Words and tags of sentences: the word in the first column, the tag in the last.

    A line that cannot be used drops its whole sentence: without it, tags would move to other words.
    """
    words: list[str] = []
    tags: list[str] = []
    broken = False
    for line in chain(read_lines(file, report), [""]):
        if line is None:
            broken = True
        elif not line.strip():
            if words and not broken:
                yield words, tags
            elif broken:
                report.dropped["sentence with a line that is not word and tag"] += 1
            words, tags, broken = [], [], False
        elif not line.startswith("-DOCSTART-"):
            cells = line.split("\t") if "\t" in line else line.split(" ")
            word, tag = "".join(cells[0].split()), cells[-1].strip()
            broken = broken or len(cells) < 2 or not (word and tag)
            words.append(word)
            tags.append(tag)


def read_members(
    archive: Path, report: Report, wanted: Callable[[str], object]
) -> Iterator[tuple[str, str]]:
    """Name and text of the wanted files of a tar archive of many, in one pass."""
    with named_damage(archive), tarfile.open(archive, "r|*") as members:
        for member in members:
            if member.isfile() and wanted(member.name):
                raw = members.extractfile(member).read()
                text = list(mend_lines(raw.split(b"\n"), report))
                if None not in text:
                    yield member.name, " ".join(text)


def concatenated(tables: Iterable[Table]) -> Table:
    """Tables one after the other."""
    tables = list(tables)
    return lambda report: chain.from_iterable(table(report) for table in tables)


def carved(table: Table, key: Callable[[Any], str], shares: dict[str, int]) -> dict[str, Table]:
    """Splits for a table that has none: ``shares`` of 1,000 rows, the others are ``train``.

    The hash of ``key(row)`` decides, so rows with the same key stay together and every run splits
    alike. What could not be read is counted once, for ``train``.
    """
    bounds: dict[str, range] = {}
    for split, share in shares.items():
        start = max((bound.stop for bound in bounds.values()), default=0)
        bounds[split] = range(start, start + share)

    def part(split: str, report: Report) -> Iterator[Any]:
        for row in table(report if split == "train" else Report()):
            bucket = fingerprint(key(row)) % 1_000
            if next((name for name, bound in bounds.items() if bucket in bound), "train") == split:
                yield row

    return {split: partial(part, split) for split in ("train", *shares)}
