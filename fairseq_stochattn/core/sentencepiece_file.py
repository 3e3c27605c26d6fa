"""Reads the pieces of a sentencepiece model (spiece.model) without the library sentencepiece.

The file is a protocol buffer, ModelProto of sentencepiece_model.proto: field 1 holds the pieces,
each with its text (1), score (2) and type (3); field 3 holds the normaliser, whose field 2 is the
compiled table of character replacements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


@dataclass(frozen=True)
class SentencePieces:
    """The pieces of a model with their scores, in the order of their ids."""

    pieces: tuple[tuple[str, float], ...]
    replacements: bytes  # of characters, as compiled by sentencepiece; may be empty

    def ids(self) -> dict[str, int]:
        """The id of every piece."""
        return {piece: number for number, (piece, _) in enumerate(self.pieces)}


def read_sentencepieces(path: Path) -> SentencePieces:
    """Read the pieces of a sentencepiece model."""
    pieces, replacements = [], b""
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                entry = dict(_fields(value))
                (score,) = struct.unpack("<f", entry.get(2, bytes(4)))
                pieces.append((entry[1].decode("utf-8"), score))
            elif number == 3:
                replacements = dict(_fields(value)).get(2, b"")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error):
        pieces = []  # the bytes are not a protocol buffer, or another one
    if not pieces or not isinstance(replacements, bytes):
        raise InputError(f"{path} is not a sentencepiece model")
    if len({piece for piece, _ in pieces}) < len(pieces):
        raise InputError(f"{path} contains a piece twice")
    return SentencePieces(tuple(pieces), replacements)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The number and value of every field of a protocol buffer; raises ``ValueError``."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"unknown kind of field {kind}")
        if position + length > len(message):
            raise ValueError("the file is cut off")
        yield tag >> 3, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number that starts at ``position``, in groups of 7 bits, and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError("a number is too long")
