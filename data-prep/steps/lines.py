"""Lines of text files as they are in the wild: compressed, in archives, with bytes that mislead.

Only a line feed ends a line. Everything that would shift one side of a parallel corpus against the
other is either mended and counted, or an error that names the file; nothing is dropped silently.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from steps.errors import PrepError

_BOM = b"\xef\xbb\xbf"
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGE = (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError)

# str.splitlines and many readers end a line at these too; inside a sentence they are spaces.
_LINE_ENDS = re.compile("[\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")


@dataclass(frozen=True)
class TextFile:
    """A text file by itself (perhaps compressed) or as a member of a zip or tar archive."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"


@dataclass
class Report:
    """What was found and mended while reading, and what was dropped, by reason."""

    lines: int = 0
    mended: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


@contextmanager
def _opened(file: TextFile) -> Iterator[io.BufferedIOBase]:
    if not file.path.is_file():
        raise PrepError(f"{file.path} does not exist")
    if file.member is None:
        opener = _OPENERS.get(file.path.suffix, open)
        with opener(file.path, "rb") as stream:
            yield stream
    elif zipfile.is_zipfile(file.path):
        with zipfile.ZipFile(file.path) as archive, _member(file, archive.open) as stream:
            yield stream
    else:
        with (
            tarfile.open(file.path) as archive,
            _member(file, archive.extractfile) as stream,
        ):
            yield stream


def _member(file: TextFile, open_member) -> io.BufferedIOBase:
    try:
        stream = open_member(file.member)
    except KeyError:
        stream = None
    if stream is None:
        raise PrepError(f"{file.path} has no file {file.member}")
    return stream


def read_raw(file: TextFile) -> Iterator[bytes]:
    """The lines of a file as bytes, without their line feeds; streamed, however long it is."""
    try:
        with _opened(file) as stream:
            for line in stream:
                yield line.removesuffix(b"\n")
    except _DAMAGE as error:
        raise PrepError(f"{file} is cut off or damaged: {error}") from None
    except zlib.error as error:
        raise PrepError(f"{file} is damaged: {error}") from None
    except OSError as error:
        raise PrepError(f"{file} cannot be read: {error.strerror or error}") from None


def read_lines(file: TextFile, report: Report) -> Iterator[str | None]:
    """The lines of a UTF-8 file; None stands for a line that is not UTF-8, so that sides keep step.

    A byte order mark, carriage returns and other characters that pass for line ends, and NUL are
    mended; the report counts the lines where that happened.
    """
    for number, raw in enumerate(read_raw(file)):
        report.lines += 1
        if number == 0 and raw.startswith(_BOM):
            raw = raw.removeprefix(_BOM)
            report.mended["byte order mark"] += 1
        if b"\x00" in raw:
            raw = raw.replace(b"\x00", b"")
            report.mended["NUL"] += 1
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            report.dropped["not UTF-8"] += 1
            yield None
            continue
        if text.endswith("\r"):
            text = text.removesuffix("\r")
            report.mended["CR at the line end"] += 1
        if _LINE_ENDS.search(text):
            text = _LINE_ENDS.sub(" ", text)
            report.mended["other line ends inside a line"] += 1
        yield text


def read_pairs(source: TextFile, target: TextFile, report: Report) -> Iterator[tuple[str, str]]:
    """Pairs of a parallel corpus. Sides of unequal length are an error, never a misalignment."""
    sides = Report(), Report()
    missing = object()
    lines = (read_lines(file, side) for file, side in zip((source, target), sides, strict=True))
    for left, right in zip_longest(*lines, fillvalue=missing):
        if left is missing or right is missing:
            counts = [_count(file) for file in (source, target)]
            raise PrepError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}: they do not pair"
            )
        report.lines += 1
        if left is None or right is None:
            report.dropped["not UTF-8"] += 1
        else:
            yield left, right
    for side in sides:
        report.mended.update(side.mended)


def _count(file: TextFile) -> int:
    return sum(1 for _ in read_raw(file))
