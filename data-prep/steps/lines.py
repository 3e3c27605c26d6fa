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
from collections.abc import Callable, Iterable, Iterator
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
_SEGMENT = re.compile(r'<seg id="[0-9]*">\s*|\s*</seg>\s*')


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


@contextmanager
def named_damage(what: object) -> Iterator[None]:
    """Turn what unpacking and reading raise into one line that names the file."""
    try:
        yield
    except _DAMAGE as error:
        cause = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        raise PrepError(f"{what} is cut off or damaged: {cause}") from None
    except zlib.error as error:
        raise PrepError(f"{what} is damaged: {error}") from None
    except OSError as error:
        raise PrepError(f"{what} cannot be read: {error.strerror or error}") from None


def read_raw(file: TextFile) -> Iterator[bytes]:
    """The lines of a file as bytes, without their line feeds; streamed, however long it is."""
    with named_damage(file), _opened(file) as stream:
        for line in stream:
            yield line.removesuffix(b"\n")


def read_lines(file: TextFile, report: Report) -> Iterator[str | None]:
    """``mend_lines`` of a file."""
    return mend_lines(read_raw(file), report)


def mend_lines(raw_lines: Iterable[bytes], report: Report) -> Iterator[str | None]:
    """Lines as UTF-8; None stands for a line that is not UTF-8, so that sides keep step.

    A byte order mark, carriage returns and other characters that pass for line ends, and NUL are
    mended; the report counts the lines where that happened.
    """
    for number, raw in enumerate(raw_lines):
        report.lines += 1
        yield mended(raw, report, first=number == 0)


def mended(raw: bytes, report: Report, first: bool) -> str | None:
    """One line as ``mend_lines`` gives it; the first of a file may have a byte order mark."""
    if first and raw.startswith(_BOM):
        raw = raw.removeprefix(_BOM)
        report.mended["byte order mark"] += 1
    if b"\x00" in raw:
        raw = raw.replace(b"\x00", b"")
        report.mended["NUL"] += 1
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        report.dropped["not UTF-8"] += 1
        return None
    if text.endswith("\r"):
        text = text.removesuffix("\r")
        report.mended["CR at the line end"] += 1
    if _LINE_ENDS.search(text):
        text = _LINE_ENDS.sub(" ", text)
        report.mended["other line ends inside a line"] += 1
    return text


def read_pairs(source: TextFile, target: TextFile, report: Report) -> Iterator[tuple[str, str]]:
    """Pairs of a parallel corpus. Sides of unequal length are an error, never a misalignment."""
    yield from pair_up(source, target, read_lines, report)


def read_segments(source: TextFile, target: TextFile, report: Report) -> Iterator[tuple[str, str]]:
    """Pairs of ``<seg id="...">`` elements, one a line, as in the XML and SGM of test sets.

    Typographic apostrophes become plain ones, as in fairseq's recipes.
    """
    yield from pair_up(source, target, _segments, report)


def _segments(file: TextFile, report: Report) -> Iterator[str | None]:
    for line in read_lines(file, report):
        if line is None:
            yield None  # the other side has its counterpart, if it is a segment at all
        elif "<seg id" in line:
            yield _SEGMENT.sub("", line).replace("’", "'").strip()


def pair_up(
    source: TextFile,
    target: TextFile,
    read: Callable[[TextFile, Report], Iterator[str | None]],
    report: Report,
) -> Iterator[tuple[str, str]]:
    """What ``read`` gives of both sides, in step; None on one side drops the pair."""
    sides = Report(), Report()
    missing = object()
    lines = (read(file, side) for file, side in zip((source, target), sides, strict=True))
    for left, right in zip_longest(*lines, fillvalue=missing):
        if left is missing or right is missing:
            counts = [sum(1 for _ in read(file, Report())) for file in (source, target)]
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
