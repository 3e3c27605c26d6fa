"""Read, clean and split documents, and find documents that were read before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from steps.errors import PrepError
from steps.lines import Report, TextFile, read_lines, repair_lines

Document = list[str]  # the lines of the document
MAX_CHARACTERS = 1_000_000  # per document, so that a text without blank lines fits in memory
CUT_NOTE = f"documents cut after {MAX_CHARACTERS:,} characters"
MAX_RECENT = 1 << 16  # hashes collected in a set before they are sorted into an array


def read_documents(files: Sequence[Path], report: Report) -> Iterator[Document]:
    """Yield the documents of plain text files; a blank line or the end of a file ends each one."""
    for file in files:
        document: Document = []
        length = 0
        for line in read_lines(TextFile(file), report):
            if line is None:
                continue
            if line.strip():
                if length + len(line) > MAX_CHARACTERS and document:
                    report.repaired[CUT_NOTE] += 1
                    yield document
                    document, length = [], 0
                document.append(line)
                length += len(line)
            elif document:
                yield document
                document, length = [], 0
        if document:
            yield document


def parse_document(content: bytes, report: Report) -> Document:
    """Return the lines of one whole document; blank lines only separate its paragraphs."""
    return [line for line in repair_lines(content.split(b"\n"), report) if line is not None]


def strip_lines(document: Iterable[str], lowercase: bool) -> Document:
    """Strip every line and remove blank lines; spaces inside a line are kept."""
    stripped = (line.strip() for line in document)
    return [line.lower() if lowercase else line for line in stripped if line]


def sentence_splitter(enabled: bool) -> Callable[[list[tuple[str, str]]], list[tuple[str, str]]]:
    """Return a function on (split, line) pairs that puts every sentence on its own line.

    The splitter is syntok, because it is pure Python, needs no download, and returns the offset of
    each sentence, so no character is lost. Its rules cover English, German and Spanish. sacremoses
    and sentencepiece have no sentence splitter, sentence-splitter is LGPL and changes spaces, and
    pysbd takes five times as long.
    """
    if not enabled:
        return lambda lines: lines
    try:
        from syntok import segmenter
    except ImportError:
        raise PrepError(
            "splitting sentences needs syntok: pip install syntok, "
            "or use --no-split-sentences if every line is a sentence"
        ) from None

    def split(line: str) -> str:
        sentences = (s for paragraph in segmenter.analyze(line) for s in paragraph)
        starts = [sentence[0].offset for sentence in sentences]
        borders = [0, *starts[1:], len(line)]
        pieces = (line[a:b].strip() for a, b in pairwise(borders))
        return "\n".join(piece for piece in pieces if piece)

    return lambda lines: [(name, split(line)) for name, line in lines]


class SeenHashes:
    """A set of 64-bit hashes that needs eight bytes per hash, or sixteen while arrays are merged.

    The hashes are stored in sorted arrays. Each array has at least twice the size of the next one,
    so there are few arrays.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._parts: list[np.ndarray] = []

    def __contains__(self, item: int) -> bool:
        return item in self._recent or any(_contains(part, item) for part in self._parts)

    def add(self, item: int) -> bool:
        """Add a hash and return whether it is new."""
        if item in self:
            return False
        self._recent.add(item)
        if len(self._recent) >= MAX_RECENT:
            part = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
            self._recent.clear()
            while self._parts and len(self._parts[-1]) <= len(part):
                part = np.concatenate([self._parts.pop(), part])
                part.sort()
            self._parts.append(part)
        return True


def _contains(part: np.ndarray, item: int) -> bool:
    key = np.uint64(item)
    index = np.searchsorted(part, key)
    return bool(index < len(part) and part[index] == key)
