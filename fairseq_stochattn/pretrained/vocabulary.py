"""Which row of an embedding is which token: a tokenizer's numbers, and fairseq's dictionary.

fairseq begins with <s>, <pad>, </s>, <unk> and its masking tasks put <mask> behind the last symbol.
A tokenizer has its own names and places for these five; all others keep their order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.pretrained.folders import needs_extra, read_json

logger = logging.getLogger(__name__)

ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
STYLES = (("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), FAIRSEQ)
# Embeddings are made a little longer than the vocabulary: up to a multiple of this at the most.
ROUNDED = 128


@dataclass(frozen=True)
class Vocabulary:
    """The rows in fairseq's order: their symbols, and the tokenizer's number of each."""

    symbols: list[str]  # <s>, <pad>, </s>, <unk>, …, <mask>
    numbers: list[int]

    @property
    def pad(self) -> int:
        return self.numbers[1]

    def dictionary(self) -> Dictionary:
        """With <mask> among its own symbols: tasks that do not add it know every row too."""
        dictionary = Dictionary()
        for symbol in self.symbols[dictionary.nspecial :]:
            dictionary.add_symbol(symbol)
        return dictionary

    def to_fairseq(self, rows: Tensor) -> Tensor:
        return rows[self.numbers]

    def to_tokenizer(self, rows: Tensor) -> Tensor:
        moved = torch.empty_like(rows)
        moved[self.numbers] = rows
        return moved


def unnamed(size: int) -> Vocabulary:
    """Of a model whose tokenizer is not known: every row stays where it is."""
    return Vocabulary([], list(range(size)))


def read_vocabulary(folder: Path, size: int) -> Vocabulary:
    """That of the tokenizer in ``folder``, for an embedding of ``size`` rows."""
    numbers = _read_tokens(folder)
    tokens = {number: token for token, number in numbers.items()}
    if max(tokens) >= size:
        raise UsageError(
            f"{folder}: the tokenizer has numbers up to {max(tokens)}, the embedding {size} rows"
        )
    spare = size - len(tokens)
    if spare >= ROUNDED:
        raise UsageError(
            f"{folder}: the tokenizer has {len(tokens)} tokens, the embedding {size} rows: "
            "they are of different models"
        )
    if spare:
        logger.info("%d rows of the embedding have no token: kept as made-up words", spare)
    ends = [numbers[token] for token in _special_tokens(folder, numbers)]
    rest = [number for number in range(size) if number not in set(ends)]
    symbols = [_symbol(tokens.get(number), number, numbers) for number in rest]
    return Vocabulary([*FAIRSEQ[:4], *symbols, FAIRSEQ[4]], [*ends[:4], *rest, ends[4]])


def _symbol(token: str | None, number: int, known: dict[str, int]) -> str:
    """The token, or a made-up word where there is none that a dictionary could hold."""
    if token is not None and token.split() == [token] and token not in FAIRSEQ:
        return token
    made_up = f"madeupword{number:04d}"  # fairseq's name for a row that no text reaches
    while made_up in known:
        made_up += "_"
    return made_up


def _special_tokens(folder: Path, known: dict[str, int]) -> list[str]:
    """What the tokenizer calls the five of fairseq, in fairseq's order."""
    given: dict[str, object] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            given |= read_json(folder / name)
    lacking: list[str] = []
    for style in STYLES:
        names = [_name(given.get(role)) or usual for role, usual in zip(ROLES, style, strict=True)]
        lacking = lacking or [name for name in names if name not in known]
        if all(name in known for name in names) and len(set(names)) == len(names):
            return names
    raise UsageError(f"{folder}: the tokenizer lacks a special token: {', '.join(lacking)}")


def _name(entry: object) -> str | None:
    return entry.get("content") if isinstance(entry, dict) else entry


def _read_tokens(folder: Path) -> dict[str, int]:
    """Every token's number, from whichever of the usual files there is."""
    for name, read in READERS.items():
        path = folder / name
        if path.is_file():
            found = read(path)
            if not found or not all(isinstance(number, int) for number in found.values()):
                raise UsageError(f"{path} holds no vocabulary")
            return found
    raise UsageError(f"{folder} has no tokenizer: none of {', '.join(READERS)}")


def _of_tokenizer_json(path: Path) -> dict[str, int]:
    with needs_extra("tokenizers"):
        import tokenizers
    try:
        return tokenizers.Tokenizer.from_file(str(path)).get_vocab()
    except Exception as error:  # the library raises bare Exceptions
        raise UsageError(f"{path} cannot be read: {error}") from None


def _of_vocab_txt(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return {line.rstrip("\r"): number for number, line in enumerate(lines) if line}


READERS = {
    "tokenizer.json": _of_tokenizer_json,
    "vocab.txt": _of_vocab_txt,
    "vocab.json": read_json,
}
TOKENIZER_FILES = (
    *READERS,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json"),
)


def tokenizer_files(folder: Path) -> list[Path]:
    """What a folder holds of a tokenizer."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
