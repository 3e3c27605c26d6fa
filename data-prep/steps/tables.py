"""Read rows of tables as streams (TSV, CSV, JSON, CoNLL), and split a table by hash.

Each reader takes a file and a ``Report``. A row that cannot be used is dropped and counted in the
report with its reason. Damage that could mix two rows raises an error that names the file and line.
"""

from __future__ import annotations

import csv
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_stochattn.core.json_input import parse_json
from steps.duplicates import fingerprint
from steps.errors import PrepError
from steps.lines import Report, TextFile, convert_read_errors, read_lines, read_raw, repair_lines

Table = Callable[[Report], Iterable[Any]]
WRONG_COLUMNS = "wrong number of columns"
MAX_RECORD_LINES = 1_000  # lines that one quoted CSV record may span


def read_tsv(
    file: TextFile,
    report: Report,
    key: str,
    names: tuple[str, ...] = (),
    extra_columns: int = 0,
) -> Iterator[dict[str, str]]:
    """Yield the rows as dictionaries by column name.

    The first line is a header if one of its cells is ``key``. Otherwise the columns are ``names``,
    which up to ``extra_columns`` unnamed columns may follow. Quotes are ordinary characters,
    because GLUE's files contain unpaired quotes.
    """
    lines = read_lines(file, report)
    first = next(lines, None)
    if first is None:
        raise PrepError(f"{file} is empty or its first line is not UTF-8")
    if key in first.split("\t"):
        names, extra_columns = tuple(first.split("\t")), 0
    elif names:
        lines = chain([first], lines)
    else:
        raise PrepError(f"{file} has no column {key!r} in its first line")
    for line in lines:
        if line is None:
            continue
        cells = line.split("\t")
        if 0 <= len(cells) - len(names) <= extra_columns:
            yield dict(zip(names, cells, strict=False))
        else:
            report.dropped[WRONG_COLUMNS] += 1


def read_csv(
    file: TextFile, report: Report, names: tuple[str, ...] = (), delimiter: str = ","
) -> Iterator[dict[str, str]]:
    """Yield the rows as dictionaries by column name.

    Quoted cells may span lines and contain the ``delimiter``. The first line is a header unless
    ``names`` are given.
    """
    for record in _csv_records(file, report):
        try:
            cells = next(csv.reader([record], strict=True, delimiter=delimiter), [])
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
    """Join lines until their quotes are closed."""
    record: list[str] = []
    for line in read_lines(file, report):
        if line is None and not record:
            continue
        if line is None or len(record) == MAX_RECORD_LINES:
            start = report.lines - len(record)
            cause = (
                f"line {report.lines} is not UTF-8"
                if line is None
                else f"it spans more than {MAX_RECORD_LINES:,} lines"
            )
            raise PrepError(f"{file}: the quote opened in line {start} cannot be read: {cause}")
        record.append(line)
        if sum(part.count('"') for part in record) % 2 == 0:
            yield "\n".join(record)
            record = []
    if record:
        start = report.lines - len(record) + 1
        raise PrepError(f"{file}: the quote opened in line {start} is never closed")


def read_json_lines(file: TextFile, report: Report) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one object per line."""
    for line in read_lines(file, report):
        if line is None or not line.strip():
            continue
        try:
            yield parse_json(line)
        except ValueError:
            report.dropped["not JSON"] += 1


def read_json(file: TextFile) -> Any:
    """Return the single JSON value of a file; the whole file is read into memory."""
    try:
        return parse_json(b"\n".join(read_raw(file)))
    except ValueError as error:
        raise PrepError(f"{file} {error}") from None


def read_conll(file: TextFile, report: Report) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words and tags of sentences; words are in the first column, tags in the last.

    An unusable line drops its whole sentence, because the tags would move to other words.
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
    """Yield name and text of those files of a tar archive whose names are wanted, in one pass."""
    with convert_read_errors(archive), _open_tar(archive) as members:
        for member in members:
            if member.isfile() and wanted(member.name):
                raw = members.extractfile(member).read()
                text = list(repair_lines(raw.split(b"\n"), report))
                if None not in text:
                    yield member.name, " ".join(text)


def _open_tar(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive, "r|*")
    except TypeError:  # tarfile takes ord() of the bytes of a gzip header, even if they are missing
        raise PrepError(f"{archive} is truncated: its gzip header ends early") from None


def concatenate(tables: Iterable[Table]) -> Table:
    """Return a table with the rows of all tables, in order."""
    tables = list(tables)
    return lambda report: chain.from_iterable(table(report) for table in tables)


def every_other(table: Table, odd: bool) -> Table:
    """Return a table with rows 0, 2, 4, … of another, or with ``odd`` rows 1, 3, 5, …

    Rows that cannot be read are counted once, with the even rows.
    """

    def rows_of(report: Report) -> Iterator[Any]:
        for number, row in enumerate(table(Report() if odd else report)):
            if number % 2 == odd:
                yield row

    return rows_of


def halve_valid(tables: dict[str, Table]) -> dict[str, Table]:
    """Replace the development sets, valid…, by two halves each, valid… and test….

    Test sets of the corpus are left out.
    """
    halves = {split: table for split, table in tables.items() if not split.startswith("test")}
    for split in [split for split in halves if split.startswith("valid")]:
        table = halves[split]
        halves[split] = every_other(table, odd=False)
        halves[split.replace("valid", "test", 1)] = every_other(table, odd=True)
    return halves


def split_by_hash(
    table: Table, key: Callable[[Any], str], shares: dict[str, int]
) -> dict[str, Table]:
    """Split a table: ``shares`` are the rows per 1,000 for each split, the rest is ``train``.

    The hash of ``key(row)`` decides, so rows with the same key are in the same split, and every run
    gives the same splits. Rows that cannot be read are counted once, in ``train``.
    """
    bounds: dict[str, range] = {}
    for split, share in shares.items():
        start = max((bound.stop for bound in bounds.values()), default=0)
        bounds[split] = range(start, start + share)

    def rows_of(split: str, report: Report) -> Iterator[Any]:
        for row in table(report if split == "train" else Report()):
            bucket = fingerprint(key(row)) % 1_000
            if next((name for name, bound in bounds.items() if bucket in bound), "train") == split:
                yield row

    return {split: partial(rows_of, split) for split in ("train", *shares)}
