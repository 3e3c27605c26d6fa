"""Read the lines of text files that may be compressed, inside archives or partly damaged.

Only a line feed ends a line. A problem that could misalign the two sides of a parallel corpus is
either repaired and counted, or raises an error that names the file. Nothing is dropped silently.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from steps.errors import PrepError

_BOM = b"\xef\xbb\xbf"
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGE = (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError)

# Characters at which str.splitlines and many other readers also end a line. They are replaced by
# spaces.
_OTHER_LINE_ENDS = re.compile("[\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
_SEGMENT = re.compile(r'<seg id="[0-9]*">\s*|\s*</seg>\s*')


@dataclass(frozen=True)
class TextFile:
    """A text file, which may be compressed, or a text file inside a zip or tar archive."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"


@dataclass
class Report:
    """Counts of the lines read, the repairs made and the lines or rows dropped, by reason."""

    lines: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


@contextmanager
def _open(file: TextFile) -> Iterator[io.BufferedIOBase]:
    if not file.path.is_file():
        raise PrepError(f"{file.path} does not exist")
    if file.member is None:
        opener = _OPENERS.get(file.path.suffix, open)
        with opener(file.path, "rb") as stream:
            yield stream
    elif zipfile.is_zipfile(file.path):
        with zipfile.ZipFile(file.path) as archive, _open_member(file, archive.open) as stream:
            yield stream
    else:
        with (
            tarfile.open(file.path) as archive,
            _open_member(file, archive.extractfile) as stream,
        ):
            yield stream


def _open_member(
    file: TextFile, open_member: Callable[[str], io.BufferedIOBase | None]
) -> io.BufferedIOBase:
    try:
        stream = open_member(file.member)
    except KeyError:
        stream = None
    if stream is None:
        raise PrepError(f"{file.path} has no file {file.member}")
    return stream


@contextmanager
def convert_read_errors(name: object) -> Iterator[None]:
    """Turn errors of reading and unpacking into a ``PrepError`` that names the file."""
    try:
        yield
    except _DAMAGE as error:
        cause = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        raise PrepError(f"{name} is truncated or damaged: {cause}") from None
    except zlib.error as error:
        raise PrepError(f"{name} is damaged: {error}") from None
    except (RuntimeError, UnicodeDecodeError, struct.error, OverflowError) as error:
        # zipfile raises these for a password, an unknown compression method, or invalid names,
        # numbers or offsets.
        raise PrepError(f"{name} cannot be unpacked: {error}") from None
    except OSError as error:
        raise PrepError(f"{name} cannot be read: {error.strerror or error}") from None


def read_raw(file: TextFile) -> Iterator[bytes]:
    """Yield the lines of a file as bytes without their line feeds; the file is streamed."""
    with convert_read_errors(file), _open(file) as stream:
        for line in stream:
            yield line.removesuffix(b"\n")


def read_lines(file: TextFile, report: Report) -> Iterator[str | None]:
    """Yield the lines of a file, repaired as by ``repair_lines``."""
    return repair_lines(read_raw(file), report)


def repair_lines(raw_lines: Iterable[bytes], report: Report) -> Iterator[str | None]:
    """Decode the lines of one file; yield None for a line that is not UTF-8.

    The None keeps the two sides of a parallel corpus aligned. A byte order mark and NUL bytes are
    removed, and other characters that some readers take for a line end become spaces. ``report``
    counts the lines with such repairs.
    """
    for number, raw in enumerate(raw_lines):
        report.lines += 1
        yield repair_line(raw, report, first=number == 0)


def repair_line(raw: bytes, report: Report, first: bool) -> str | None:
    """Decode and repair one line; only the first line of a file may have a byte order mark."""
    if first and raw.startswith(_BOM):
        raw = raw.removeprefix(_BOM)
        report.repaired["byte order mark"] += 1
    if b"\x00" in raw:
        raw = raw.replace(b"\x00", b"")
        report.repaired["NUL"] += 1
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        report.dropped["not UTF-8"] += 1
        return None
    if text.endswith("\r"):
        text = text.removesuffix("\r")
        report.repaired["CR at the line end"] += 1
    if _OTHER_LINE_ENDS.search(text):
        text = _OTHER_LINE_ENDS.sub(" ", text)
        report.repaired["other line ends inside a line"] += 1
    return text


def read_pairs(source: TextFile, target: TextFile, report: Report) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a parallel corpus; raise an error if the line counts differ."""
    yield from pair_up(source, target, read_lines, report)


def read_segments(source: TextFile, target: TextFile, report: Report) -> Iterator[tuple[str, str]]:
    """Yield pairs of ``<seg id="...">`` elements, one per line, from XML and SGM test sets.

    Typographic apostrophes become plain ones, as in fairseq's recipes.
    """
    yield from pair_up(source, target, _read_segments, report)


def _read_segments(file: TextFile, report: Report) -> Iterator[str | None]:
    for line in read_lines(file, report):
        if line is None:
            yield None  # keeps the sides aligned; if it was not a segment, the counts will differ
        elif "<seg id" in line:
            yield _SEGMENT.sub("", line).replace("’", "'").strip()


def pair_up(
    source: TextFile,
    target: TextFile,
    read: Callable[[TextFile, Report], Iterator[str | None]],
    report: Report,
) -> Iterator[tuple[str, str]]:
    """Yield what ``read`` yields for both files in parallel; None on either side drops the pair."""
    sides = Report(), Report()
    missing = object()
    lines = (read(file, side) for file, side in zip((source, target), sides, strict=True))
    for left, right in zip_longest(*lines, fillvalue=missing):
        if left is missing or right is missing:
            counts = [sum(1 for _ in read(file, Report())) for file in (source, target)]
            raise PrepError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}: "
                "the two sides of a parallel corpus need the same number of lines"
            )
        report.lines += 1
        if left is None or right is None:
            report.dropped["not UTF-8"] += 1
        else:
            yield left, right
    for side in sides:
        report.repaired.update(side.repaired)
