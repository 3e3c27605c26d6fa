"""Checks binarised data before fairseq reads it: files of a split, and token ids in batches.

fairseq maps these files into memory. It does not check that an index fits its file of tokens, and
a damaged pair gives wrong sentences, or errors that name no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from ..core.errors import InputError

_MAPPED = b"MMIDIDX\x00\x00"  # --dataset-impl mmap, fairseq's default
_OTHERS = (b"TNTIDX\x00\x00", b"HUFFIDX\x00\x00")  # cached and lazy; huffman
_HEADER = np.dtype([("magic", "S9"), ("version", "<u8"), ("kind", "u1"), ("count", "<u8")])
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 8, 8: 2, 9: 4, 10: 8}  # kind → bytes per token


def require_folders(data: str) -> None:
    """Raise ``InputError`` unless all folders of the data exist; a colon separates several."""
    for part in utils.split_paths(data) or [data]:
        if not part or not Path(part).is_dir():
            raise InputError(f"data directory {part} does not exist")


def require_split_name(subset: str) -> None:
    """Raise ``InputError`` if the name cannot be that of a split of the data."""
    if not subset or "/" in subset:
        raise InputError(f"'{subset}' is not the name of a split, such as valid or test")


def require_complete(data: str, subset: str) -> None:
    """Raise ``InputError`` if a file of the split is damaged: cut, emptied or overwritten."""
    require_split_name(subset)
    for folder in utils.split_paths(data):
        for pattern in ("*.idx", "*/*.idx"):
            for index in sorted(Path(folder).glob(pattern)):
                if index.name.startswith(subset) and index.with_suffix(".bin").is_file():
                    _check_index(index, index.with_suffix(".bin"))


def _check_index(index: Path, tokens: Path) -> None:
    """Raise ``InputError`` unless every sentence of the index lies within the file of tokens."""
    with index.open("rb") as file:
        head = file.read(_HEADER.itemsize)
    if head.startswith(_OTHERS):
        return
    if not head.startswith(_MAPPED) or len(head) < _HEADER.itemsize:
        raise _damaged(index, "it does not start like an index of fairseq-preprocess")
    header = np.frombuffer(head, _HEADER)[0]
    count, width = int(header["count"]), _BYTES.get(int(header["kind"]))
    if header["version"] != 1 or width is None:
        raise _damaged(index, "its header is unknown")
    expected = _HEADER.itemsize + 12 * count
    if index.stat().st_size != expected:
        raise _damaged(index, f"it has {index.stat().st_size} bytes instead of {expected}")
    if count == 0:
        return
    content = np.memmap(index, mode="r", offset=_HEADER.itemsize)
    lengths = content[: 4 * count].view("<i4").astype(np.int64)
    starts = content[4 * count :].view("<i8")
    size = tokens.stat().st_size
    inside = (lengths >= 0) & (starts >= 0) & (starts <= size - lengths * width)
    if not inside.all():
        number = int(np.argmin(inside))
        raise _damaged(tokens, f"it has {size} bytes, and sentence {number} is not within them")


def _damaged(path: Path, cause: str) -> InputError:
    return InputError(f"{path} is damaged: {cause}; binarise the data again")


class Vocabularies(NamedTuple):
    """The number of token ids that a task knows; None where it has no dictionary."""

    source: int | None
    target: int | None

    @classmethod
    def of(cls, task: Any) -> Vocabularies:
        return cls(*(_size(task, f"{side}_dictionary") for side in cls._fields))


def _size(task: Any, name: str) -> int | None:
    with suppress(NotImplementedError):  # a task of fairseq without dictionaries
        symbols = getattr(task, name, None)
        return None if symbols is None else len(symbols)
    return None


def require_known_tokens(batch: dict[str, Any], known: Vocabularies, where: str) -> None:
    """Raise ``InputError`` if a batch has token ids beyond the dictionary of its side."""
    for tokens, size in _tokens(batch, known):
        if size is not None and tokens.numel():
            low, high = torch.aminmax(tokens)
            if low < 0 or high >= size:
                odd = int(low if low < 0 else high)
                raise InputError(
                    f"{where} has the token id {odd}, but the dictionary has {size} entries: the "
                    "data is damaged, or was binarised with another dictionary"
                )


def _tokens(batch: dict[str, Any], known: Vocabularies) -> Iterator[tuple[Tensor, int | None]]:
    """Yield the inputs of a batch, each with the size of its dictionary."""
    for name, inputs in batch.items():
        # Multiple choice has net_input1, net_input2 and so on: one for each option.
        if name.startswith("net_input") and isinstance(inputs, dict):
            for key, size in (("src_tokens", known.source), ("prev_output_tokens", known.target)):
                if isinstance(inputs.get(key), Tensor):
                    yield inputs[key], size
