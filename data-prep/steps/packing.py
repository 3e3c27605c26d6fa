"""Lines of subwords as fairseq's tasks for running text read them: sentences, or full blocks."""

from __future__ import annotations

from typing import Protocol, TextIO

SEPARATOR = "</s>"  # fairseq's end of sentence; in a text it is looked up like any other symbol


class Packer(Protocol):
    """Writes one set; ``rows`` are the lines that hold text."""

    rows: int

    def line(self, text: str) -> None: ...

    def end_document(self) -> None: ...

    def close(self) -> None: ...


class Sentences:
    """A sentence a line, a blank line between documents: for ``complete`` and ``complete_doc``."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._between = False
        self.rows = 0

    def line(self, text: str) -> None:
        if self._between:
            self._file.write("\n")
            self._between = False
        self._file.write(text + "\n")
        self.rows += 1

    def end_document(self) -> None:
        self._between = self.rows > 0

    def close(self) -> None:
        pass


class Blocks:
    """Lines of ``size`` subwords, whatever sentence they are from: for ``eos``.

    Only the last line of a set is shorter. A document that starts a line needs no separator in
    front: fairseq ends every line with one.
    """

    def __init__(self, file: TextIO, size: int) -> None:
        self._file = file
        self._size = size
        self._tokens: list[str] = []
        self._between = False
        self.rows = 0

    def line(self, text: str) -> None:
        if self._between and self._tokens:
            self._tokens.append(SEPARATOR)
            self._flush()
        self._between = False
        self._tokens.extend(text.split())
        self._flush()

    def _flush(self, least: int = 0) -> None:
        least = least or self._size
        start = 0
        while len(self._tokens) - start >= least:
            self._write(self._tokens[start : start + self._size])
            start += self._size
        del self._tokens[:start]

    def _write(self, tokens: list[str]) -> None:
        self._file.write(" ".join(tokens) + "\n")
        self.rows += 1

    def end_document(self) -> None:
        self._between = True

    def close(self) -> None:
        self._flush(least=1)
