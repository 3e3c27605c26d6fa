"""Binarise text with several workers; the files equal those of fairseq-preprocess byte for byte.

fairseq's own command splits each line with a regular expression, builds one tensor per line and
reads every file twice. This module encodes whole chunks of lines at once. Dictionaries and file
headers are written by fairseq's own classes.
"""

from __future__ import annotations

import shutil
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from steps.errors import PrepError
from steps.parallel import map_chunks

TOKENS_PER_READ = 1 << 18
LINES_PER_WRITE = 1 << 12  # number of lines whose index entries are written at once
PARALLEL_BYTES = 1 << 22  # for smaller texts, starting worker processes costs more than it saves


def workers_for(path: Path, workers: int) -> int:
    """Return ``workers`` for a large text file and 1 for a small one."""
    return workers if path.stat().st_size > PARALLEL_BYTES else 1


def _read_lines(path: Path, step: str) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from tqdm(file, f"{path.name}: {step}", leave=False, disable=None)


def _word_counter() -> Callable[[list[str]], list[Counter[str]]]:
    return lambda lines: [Counter(word for line in lines for word in line.split())]


def build_dictionary(texts: Iterable[Path], path: Path, workers: int) -> None:
    """Write a dictionary of all words, ordered and padded as fairseq-preprocess does."""
    from fairseq.data import Dictionary

    counts: Counter[str] = Counter()
    for text in texts:
        lines = _read_lines(text, "counting words")
        for part in map_chunks(_word_counter, (), lines, workers_for(text, workers)):
            counts.update(part)
    dictionary = Dictionary()
    for word, count in counts.items():
        dictionary.add_symbol(word, count)
    dictionary.finalize(padding_factor=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    dictionary.save(str(path))


def write_dictionary(symbols: Sequence[str], path: Path) -> None:
    """Write a fairseq dictionary of ``symbols``, with descending counts that keep their order."""
    if any(len(symbol.split()) != 1 for symbol in symbols):
        raise PrepError("the vocabulary has symbols that are empty or contain spaces")
    lines = (f"{symbol} {len(symbols) - i}\n" for i, symbol in enumerate(symbols))
    path.write_text("".join(lines), encoding="utf-8")


def check_dictionary(path: Path) -> None:
    """Raise unless fairseq can load the dictionary."""
    from fairseq.data import Dictionary

    try:
        Dictionary.load(str(path))
    except OSError as error:
        raise PrepError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # fairseq raises plain exceptions for a file that is not UTF-8
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PrepError(f"{path} is not a fairseq dictionary: {cause[:200]}") from None


def _encoder(dictionary: Path) -> Callable[[list[str]], list[tuple[bytes, list[int]]]]:
    """Return a function that encodes a chunk of lines as (token numbers, length of every line)."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import best_fitting_int_dtype

    symbols = Dictionary.load(str(dictionary))
    index_of, unknown, end = symbols.indices.get, symbols.unk(), symbols.eos()
    dtype = best_fitting_int_dtype(len(symbols))

    def encode(lines: list[str]) -> list[tuple[bytes, list[int]]]:
        tokens: list[int] = []
        lengths: list[int] = []
        for line in lines:
            start = len(tokens)
            tokens.extend(index_of(word, unknown) for word in line.split())
            tokens.append(end)
            lengths.append(len(tokens) - start)
        return [(np.array(tokens, dtype=dtype).tobytes(), lengths)]

    return encode


def binarise_lines(text: Path, dictionary: Path, prefix: Path, workers: int) -> None:
    """Write PREFIX.bin and PREFIX.idx with one sentence per line; </s> ends each sentence."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import best_fitting_int_dtype

    dtype = best_fitting_int_dtype(len(Dictionary.load(str(dictionary))))
    sizes = array("i")
    lines = _read_lines(text, "binarising")
    with Path(f"{prefix}.bin").open("wb") as data:
        for tokens, lengths in map_chunks(
            _encoder, (dictionary,), lines, workers_for(text, workers)
        ):
            data.write(tokens)
            sizes.extend(lengths)
    write_index(Path(f"{prefix}.idx"), np.asarray(sizes, dtype=np.int32), dtype)


def write_index(path: Path, sizes: np.ndarray, dtype: type) -> None:
    """Write the index of a data file: the length of every line, then its offset in bytes.

    fairseq writes the header. The rest is written here in parts, which needs only the four bytes
    per line of ``sizes``, because fairseq's own writer would store a Python list of all offsets,
    about 50 bytes per line.
    """
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    with MMapIndexedDataset.Index.writer(str(path), dtype):
        pass
    bytes_per_token, offset = np.dtype(dtype).itemsize, 0
    with path.open("ab") as file:
        file.write(struct.pack("<Q", len(sizes)))
        file.write(sizes.astype("<i4", copy=False))
        for first in range(0, len(sizes), LINES_PER_WRITE):
            lengths = bytes_per_token * sizes[first : first + LINES_PER_WRITE].astype("<i8")
            ends = offset + np.cumsum(lengths)
            file.write(ends - lengths)
            offset = ends[-1]


def binarise_text(
    texts: dict[str, Path], out: Path, workers: int, dictionary: Path, suffix: str = ""
) -> None:
    """Binarise one text per split into ``out`` and copy the dictionary there.

    ``suffix`` is appended to the names of the splits, for example ``.de-en.de``.
    """
    out.mkdir(parents=True, exist_ok=True)
    name = f"dict{suffix[suffix.rfind('.') :] if suffix else ''}.txt"
    if dictionary != out / name:
        shutil.copyfile(dictionary, out / name)
    for split, text in texts.items():
        binarise_lines(text, dictionary, out / f"{split}{suffix}", workers)


def count_tokens(prefix: Path, dictionary: Path) -> tuple[int, int]:
    """Return the number of tokens in binarised data without </s>, and how many are unknown."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype

    symbols = Dictionary.load(str(dictionary))
    dtype = np.dtype(best_fitting_int_dtype(len(symbols)))
    lines = len(MMapIndexedDataset.Index(f"{prefix}.idx"))
    total = unknown = 0
    # The file is not memory-mapped, because mapped pages would count as memory in use.
    with Path(f"{prefix}.bin").open("rb") as file:
        while part := file.read(TOKENS_PER_READ * dtype.itemsize):
            tokens = np.frombuffer(part, dtype)
            total += len(tokens)
            unknown += int((tokens == symbols.unk()).sum())
    return total - lines, unknown
