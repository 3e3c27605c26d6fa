"""Converts the order of embedding rows between a tokenizer's token ids and a fairseq dictionary.

A fairseq dictionary starts with <s>, <pad>, </s>, <unk>, and fairseq's masking tasks append <mask>
as the last symbol. A tokenizer has other names and ids for these five tokens. All other tokens are
in the same order in the tokenizer and in the dictionary.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.data import Dictionary
from torch import Tensor

from ..core.errors import InputError
from ..core.json_input import short
from ..core.optional import optional_import
from ..core.sentencepiece_file import read_sentencepieces
from .huggingface_folder import read_json

logger = logging.getLogger(__name__)

ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
# The default names of the five special tokens: BERT's, RoBERTa's and ALBERT's.
DEFAULT_NAMES = (
    ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
    FAIRSEQ_SPECIAL,
    ("[CLS]", "<pad>", "[SEP]", "<unk>", "[MASK]"),
)
# Many models round the number of embedding rows up to a multiple of a number such as 8 or 64. This
# is the largest such number that is expected.
ROW_MULTIPLE = 128


@dataclass(frozen=True)
class Vocabulary:
    """The symbol and the tokenizer's id of every embedding row, in the order of fairseq."""

    symbols: list[str]  # <s>, <pad>, </s>, <unk>, …, <mask>
    token_ids: list[int]

    @property
    def padding_id(self) -> int:
        return self.token_ids[1]

    def dictionary(self) -> Dictionary:
        """The fairseq dictionary of all symbols.

        The dictionary includes <mask>, so that tasks that do not add <mask> themselves have the
        same number of embedding rows.
        """
        dictionary = Dictionary()
        for symbol in self.symbols[dictionary.nspecial :]:
            dictionary.add_symbol(symbol)
        return dictionary

    def to_fairseq(self, rows: Tensor) -> Tensor:
        """Reorder rows from the tokenizer's order to fairseq's."""
        return rows[self.token_ids]

    def to_tokenizer(self, rows: Tensor) -> Tensor:
        """Reorder rows from fairseq's order to the tokenizer's."""
        reordered = torch.empty_like(rows)
        reordered[self.token_ids] = rows
        return reordered


def vocabulary_without_tokenizer(size: int) -> Vocabulary:
    """A vocabulary without symbols, which keeps every row in its place."""
    return Vocabulary([], list(range(size)))


def read_vocabulary(folder: Path, size: int) -> Vocabulary:
    """The vocabulary of the tokenizer in ``folder``, for an embedding of ``size`` rows."""
    ids = _read_token_ids(folder)
    tokens = {token_id: token for token, token_id in ids.items()}
    if max(tokens) >= size:
        raise InputError(
            f"{folder}: the tokenizer has ids up to {short(max(tokens))}, but the embedding has "
            f"only {size} rows"
        )
    unused = size - len(tokens)
    if unused >= ROW_MULTIPLE:
        raise InputError(
            f"{folder}: the tokenizer has {len(tokens)} tokens, but the embedding has {size} rows: "
            "they belong to different models"
        )
    if unused:
        logger.info("%d embedding rows have no token: they get placeholder symbols", unused)
    special = [ids[token] for token in _special_tokens(folder, ids)]
    others = [token_id for token_id in range(size) if token_id not in set(special)]
    symbols = [_symbol(tokens.get(token_id), token_id, ids) for token_id in others]
    return Vocabulary(
        symbols=[*FAIRSEQ_SPECIAL[:4], *symbols, FAIRSEQ_SPECIAL[4]],
        token_ids=[*special[:4], *others, special[4]],
    )


def _symbol(token: str | None, token_id: int, known: dict[str, int]) -> str:
    """Return the token, or a placeholder if it is None or not allowed in a fairseq dictionary."""
    if token is not None and token.split() == [token] and token not in FAIRSEQ_SPECIAL:
        return token
    placeholder = f"madeupword{token_id:04d}"  # fairseq's own name for unused rows
    while placeholder in known:
        placeholder += "_"
    return placeholder


def _special_tokens(folder: Path, known: dict[str, int]) -> list[str]:
    """The tokenizer's names for fairseq's five special tokens, in the order of fairseq."""
    given: dict[str, object] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            given |= read_json(folder / file)
    missing: list[str] = []
    for defaults in DEFAULT_NAMES:
        names = [
            _token_text(given.get(role)) or default
            for role, default in zip(ROLES, defaults, strict=True)
        ]
        missing = missing or [name for name in names if name not in known]
        if all(name in known for name in names) and len(set(names)) == len(names):
            return names
    raise InputError(f"{folder}: the tokenizer lacks a special token: {short(', '.join(missing))}")


def _token_text(entry: object) -> str | None:
    """The text of a special token, which is stored as a string or as an object."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _read_token_ids(folder: Path) -> dict[str, int]:
    """Read the id of every token from the first of the usual tokenizer files that exists."""
    for name, read in READERS.items():
        path = folder / name
        if path.is_file():
            ids = read(path)
            if not ids or not all(type(x) is int and x >= 0 for x in ids.values()):
                raise InputError(f"{path} does not contain a vocabulary")
            if len(set(ids.values())) < len(ids):
                raise InputError(f"{path} gives the same id to two tokens")
            return ids
    raise InputError(f"{folder} has no tokenizer: none of {', '.join(READERS)}")


def _read_tokenizer_json(path: Path) -> dict[str, int]:
    tokenizers = optional_import("tokenizers", f"reading {path}", "pretrained")
    try:
        return tokenizers.Tokenizer.from_file(str(path)).get_vocab()
    except Exception as error:  # the library has no exception class of its own
        raise InputError(f"{path} cannot be read: {error}") from None


def _read_vocab_txt(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return {line.rstrip("\r"): number for number, line in enumerate(lines) if line}


READERS = {
    "tokenizer.json": _read_tokenizer_json,
    "vocab.txt": _read_vocab_txt,
    "vocab.json": read_json,
    "spiece.model": lambda path: read_sentencepieces(path).ids(),
}
TOKENIZER_FILES = (
    *READERS,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json"),
)


def tokenizer_files(folder: Path) -> list[Path]:
    """The tokenizer files that exist in a folder."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
