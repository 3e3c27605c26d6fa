"""Write lines of subwords in the layouts that fairseq's tasks read: sentences or full blocks."""

from __future__ import annotations

from typing import Protocol, TextIO

SEPARATOR = "</s>"  # fairseq's end-of-sentence symbol, which fairseq also encodes inside a text


class Packer(Protocol):
    """Writes the text of one split; ``rows`` counts the non-blank lines written."""

    rows: int

    def line(self, text: str) -> None: ...

    def end_document(self) -> None: ...

    def close(self) -> None: ...


class SentencePacker:
    """Writes one sentence per line and a blank line between documents.

    fairseq reads this layout with ``--sample-break-mode complete`` or ``complete_doc``.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._new_document = False
        self.rows = 0

    def line(self, text: str) -> None:
        if self._new_document:
            self._file.write("\n")
            self._new_document = False
        self._file.write(text + "\n")
        self.rows += 1

    def end_document(self) -> None:
        self._new_document = self.rows > 0

    def close(self) -> None:
        pass


class BlockPacker:
    """Writes lines of exactly ``size`` subwords, across sentence and document boundaries.

    fairseq reads this layout with ``--sample-break-mode eos``. Only the last line may be shorter. A
    separator is written between two documents, except where a document starts a line, because
    fairseq ends every line with a separator.
    """

    def __init__(self, file: TextIO, size: int) -> None:
        self._file = file
        self._size = size
        self._tokens: list[str] = []
        self._new_document = False
        self.rows = 0

    def line(self, text: str) -> None:
        if self._new_document and self._tokens:
            self._tokens.append(SEPARATOR)
            self._flush()
        self._new_document = False
        self._tokens.extend(text.split())
        self._flush()

    def _flush(self, min_tokens: int = 0) -> None:
        min_tokens = min_tokens or self._size
        start = 0
        while len(self._tokens) - start >= min_tokens:
            self._write(self._tokens[start : start + self._size])
            start += self._size
        del self._tokens[:start]

    def _write(self, tokens: list[str]) -> None:
        self._file.write(" ".join(tokens) + "\n")
        self.rows += 1

    def end_document(self) -> None:
        self._new_document = True

    def close(self) -> None:
        self._flush(min_tokens=1)
