"""Split texts into subwords and say which characters of the original text each subword covers.

A span of subwords can then be cut out of the original text, with its upper case, its accents and
its spaces.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from steps import subwords
from steps.errors import PrepError


class Pieces(NamedTuple):
    """The subwords of a text; number i covers the characters starts[i] … ends[i] − 1 of it."""

    symbols: list[str]
    starts: list[int]
    ends: list[int]


def plain_text(text: str, lowercase: bool = False) -> tuple[str, list[int]]:
    """Return the text as data preparation splits it, and the origin of each of its characters.

    Runs of spaces become one space, and NUL characters are left out, as for all fine-tuning sets.
    A half of a surrogate pair becomes the replacement character.
    """
    characters: list[str] = []
    origin: list[int] = []
    space = -1  # the place of a space that no character has followed yet
    for place, character in enumerate(text):
        if character == "\0":
            continue
        if character.isspace():
            space = place if characters and space < 0 else space
            continue
        if space >= 0:
            characters.append(" ")
            origin.append(space)
            space = -1
        if "\ud800" <= character <= "\udfff":
            character = "\ufffd"
        # A few characters have a lower case of two characters.
        for lower in character.lower() if lowercase else character:
            characters.append(lower)
            origin.append(place)
    return "".join(characters), origin


def offset_applier(
    kind: str, model: Path | None, lowercase: bool
) -> Callable[[list[str]], list[Pieces]]:
    """Return a function that splits texts into subwords with their characters."""
    split = _splitter(kind, model)

    def apply(texts: list[str]) -> list[Pieces]:
        plain = [plain_text(text, lowercase) for text in texts]
        rows = split([text for text, _ in plain])
        return [_in_original(row, *pair) for row, pair in zip(rows, plain, strict=True)]

    return apply


Row = list[tuple[str, int, int]]  # subword, its first character and the one after its last


def _splitter(kind: str, model: Path | None) -> Callable[[list[str]], list[Row]]:
    """Return a function that splits plain texts into subwords with their characters."""
    if kind == "none":
        return lambda texts: [_words(text) for text in texts]
    if kind in ("gpt2", "tokenizer"):
        tokenizer = subwords.load_tokenizer(model)

        def tokenize(texts: list[str]) -> list[Row]:
            found = tokenizer.encode_batch(texts, add_special_tokens=False)
            # fairseq's --bpe gpt2 writes token numbers, and RoBERTa's dict.txt lists numbers.
            names = [list(map(str, x.ids)) if kind == "gpt2" else x.tokens for x in found]
            return [
                [(name, *place) for name, place in zip(row, x.offsets, strict=True)]
                for row, x in zip(names, found, strict=True)
            ]

        return tokenize
    if not kind.startswith("spm"):
        raise PrepError(
            f"--subwords {kind} does not know which characters a subword covers, which answers are "
            "cut out by: use spm-unigram, spm-bpe, gpt2, tokenizer or none"
        )
    processor = subwords.load_sentencepiece(model)

    return lambda texts: [_sentencepieces(processor, text) for text in texts]


def _sentencepieces(processor: Any, text: str) -> Row:
    """Return the pieces of a text with their characters, in all versions of sentencepiece."""
    try:
        found = processor.encode(text, return_type="offset_mapping")
    except (TypeError, ValueError):  # before 0.2.2
        pieces = processor.encode(text, out_type="immutable_proto").pieces
        return [(x.piece, x.begin, x.end) for x in pieces]
    places = zip(found["pieces"], found["offsets"], strict=True)
    return [(piece, start, end) for piece, (start, end) in places]


def _words(text: str) -> Row:
    """Return the words between spaces."""
    rows, start = [], 0
    for word in text.split(" ") if text else []:
        rows.append((word, start, start + len(word)))
        start += len(word) + 1
    return rows


def _in_original(row: Row, text: str, origin: list[int]) -> Pieces:
    """Move the characters of subwords of a plain text to the original text; leave spaces out."""
    symbols, starts, ends = [], [], []
    for symbol, start, end in row:
        if not symbol.split():
            continue  # a subword of spaces alone: a line of the data could not show it
        while start < end and text[start] == " ":
            start += 1
        while start < end and text[end - 1] == " ":
            end -= 1
        # A subword without characters, such as the mark of a word's beginning, is at one place.
        first = origin[start] if start < len(origin) else (origin[-1] + 1 if origin else 0)
        symbols.append(" ".join(subwords.plain_pieces(symbol)))
        starts.append(first)
        ends.append(origin[end - 1] + 1 if end > start else first)
    return Pieces(symbols, starts, ends)
