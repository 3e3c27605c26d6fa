"""Corpora as streams of documents: reading, tidying, sentences, and which documents came before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from steps.errors import PrepError
from steps.lines import Report, TextFile, mend_lines, read_lines

Document = list[str]  # its lines
LONGEST = 1_000_000  # characters; a text without blank lines must not fill the memory
CUT = f"documents cut after {LONGEST:,} characters"
RECENT = 1 << 16


def read_documents(files: Sequence[Path], report: Report) -> Iterator[Document]:
    """Documents of plain text files, where blank lines separate them and files end them."""
    for file in files:
        document: Document = []
        length = 0
        for line in read_lines(TextFile(file), report):
            if line is None:
                continue
            if line.strip():
                if length + len(line) > LONGEST and document:
                    report.mended[CUT] += 1
                    yield document
                    document, length = [], 0
                document.append(line)
                length += len(line)
            elif document:
                yield document
                document, length = [], 0
        if document:
            yield document


def document_of(content: bytes, report: Report) -> Document:
    """One document that comes in one piece; blank lines inside it are only its paragraphs."""
    return [line for line in mend_lines(content.split(b"\n"), report) if line is not None]


def tidy(document: Iterable[str], lowercase: bool) -> Document:
    """Lines without the space around them; blank ones go. Spaces inside a line are the text's."""
    stripped = (line.strip() for line in document)
    return [line.lower() if lowercase else line for line in stripped if line]


def sentence_splitter(wanted: bool) -> Callable[[list[tuple[str, str]]], list[tuple[str, str]]]:
    """Work on (split, line): every sentence of the line on a line of its own.

    sacremoses only has the shell of a sentence splitter, sentencepiece none. syntok is pure Python,
    needs no download, and says where a sentence starts, so no character is lost; its rules are made
    for English, German and Spanish. (sentence-splitter is LGPL and rewrites spaces; pysbd takes
    five times as long.)
    """
    if not wanted:
        return lambda lines: lines
    try:
        from syntok import segmenter
    except ImportError:
        raise PrepError(
            "syntok, which splits sentences, is missing: pip install syntok, "
            "or --no-split-sentences where a line is a sentence"
        ) from None

    def split(line: str) -> str:
        found = (s for paragraph in segmenter.analyze(line) for s in paragraph)
        starts = [sentence[0].offset for sentence in found]
        borders = [0, *starts[1:], len(line)]
        pieces = (line[a:b].strip() for a, b in pairwise(borders))
        return "\n".join(piece for piece in pieces if piece)

    return lambda lines: [(name, split(line)) for name, line in lines]


class Seen:
    """64-bit hashes that came before: eight bytes each, sixteen while two sorted parts are joined.

    Parts at least double in size from the last to the first, so there are few to look into.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._parts: list[np.ndarray] = []

    def __contains__(self, item: int) -> bool:
        return item in self._recent or any(_holds(part, item) for part in self._parts)

    def add(self, item: int) -> bool:
        """Whether the item is new."""
        if item in self:
            return False
        self._recent.add(item)
        if len(self._recent) >= RECENT:
            part = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
            self._recent.clear()
            while self._parts and len(self._parts[-1]) <= len(part):
                part = np.concatenate([self._parts.pop(), part])
                part.sort()
            self._parts.append(part)
        return True


def _holds(part: np.ndarray, item: int) -> bool:
    key = np.uint64(item)
    place = np.searchsorted(part, key)
    return bool(place < len(part) and part[place] == key)
