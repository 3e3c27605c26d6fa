"""Text to the data that fairseq-preprocess would write, byte for byte, on all cores.

fairseq's own command splits a line with a regular expression, builds a tensor of it and reads every
file twice; here lines are encoded by the chunk. Dictionaries and files are fairseq's own classes'.
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

PART = 1 << 18  # tokens looked at in one go
LINES = 1 << 12  # lines of an index written in one go
LARGE = 1 << 22  # bytes of text from which more than one process is worth its start


def workers_for(path: Path, workers: int) -> int:
    """All workers for a text that is worth it, else one."""
    return workers if path.stat().st_size > LARGE else 1


def _lines(path: Path, what: str) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from tqdm(file, f"{path.name}: {what}", leave=False, disable=None)


def _counter() -> Callable[[list[str]], list[Counter[str]]]:
    return lambda lines: [Counter(word for line in lines for word in line.split())]


def build_dictionary(texts: Iterable[Path], path: Path, workers: int) -> None:
    """The words of all texts by frequency, as fairseq-preprocess orders and pads them."""
    from fairseq.data import Dictionary

    counts: Counter[str] = Counter()
    for text in texts:
        parts = map_chunks(_counter, (), _lines(text, "words"), workers_for(text, workers))
        for part in parts:
            counts.update(part)
    dictionary = Dictionary()
    for word, count in counts.items():
        dictionary.add_symbol(word, count)
    dictionary.finalize(padding_factor=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    dictionary.save(str(path))


def write_dictionary(symbols: Sequence[str], path: Path) -> None:
    """A fairseq dictionary of these symbols in this order; the counts only keep the order."""
    if any(len(symbol.split()) != 1 for symbol in symbols):
        raise PrepError("the vocabulary has symbols that are empty or hold spaces")
    lines = (f"{symbol} {len(symbols) - i}\n" for i, symbol in enumerate(symbols))
    path.write_text("".join(lines), encoding="utf-8")


def _encoder(dictionary: Path) -> Callable[[list[str]], list[tuple[bytes, list[int]]]]:
    """Work: a chunk of lines as one run of token numbers, and the length of every line."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import best_fitting_int_dtype

    symbols = Dictionary.load(str(dictionary))
    number, unknown, end = symbols.indices.get, symbols.unk(), symbols.eos()
    dtype = best_fitting_int_dtype(len(symbols))

    def work(lines: list[str]) -> list[tuple[bytes, list[int]]]:
        tokens: list[int] = []
        lengths: list[int] = []
        for line in lines:
            before = len(tokens)
            tokens.extend(number(word, unknown) for word in line.split())
            tokens.append(end)
            lengths.append(len(tokens) - before)
        return [(np.array(tokens, dtype=dtype).tobytes(), lengths)]

    return work


def binarise_lines(text: Path, dictionary: Path, prefix: Path, workers: int) -> None:
    """PREFIX.bin and PREFIX.idx: a sentence a line, each with the end of sentence behind."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import best_fitting_int_dtype

    dtype = best_fitting_int_dtype(len(Dictionary.load(str(dictionary))))
    sizes = array("i")
    lines = _lines(text, "numbers")
    with Path(f"{prefix}.bin").open("wb") as data:
        for tokens, lengths in map_chunks(
            _encoder, (dictionary,), lines, workers_for(text, workers)
        ):
            data.write(tokens)
            sizes.extend(lengths)
    write_index(Path(f"{prefix}.idx"), np.asarray(sizes, dtype=np.int32), dtype)


def write_index(path: Path, sizes: np.ndarray, dtype: type) -> None:
    """The index of a data file: the length of every line, then where in the file it begins.

    The head is fairseq's. Its ``write`` would make a list of the beginnings, some 50 bytes a line,
    at once; by the part no more than the lengths themselves are in memory, four bytes a line.
    """
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    with MMapIndexedDataset.Index.writer(str(path), dtype):
        pass
    width, before = np.dtype(dtype).itemsize, 0  # bytes of a token, and of all lines written
    with path.open("ab") as file:
        file.write(struct.pack("<Q", len(sizes)))
        file.write(sizes.astype("<i4", copy=False))
        for first in range(0, len(sizes), LINES):
            length = width * sizes[first : first + LINES].astype("<i8")
            end = before + np.cumsum(length)
            file.write(end - length)
            before = end[-1]


def binarise_text(
    texts: dict[str, Path], out: Path, workers: int, dictionary: Path, suffix: str = ""
) -> None:
    """One text a split into ``out``, which gets the dictionary too; ``suffix`` as ``.de-en.de``."""
    out.mkdir(parents=True, exist_ok=True)
    name = f"dict{suffix[suffix.rfind('.') :] if suffix else ''}.txt"
    if dictionary != out / name:
        shutil.copyfile(dictionary, out / name)
    for split, text in texts.items():
        binarise_lines(text, dictionary, out / f"{split}{suffix}", workers)


def count_tokens(prefix: Path, dictionary: Path) -> tuple[int, int]:
    """Tokens of binarised data without the sentence ends, and how many of them are unknown."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype

    symbols = Dictionary.load(str(dictionary))
    dtype = np.dtype(best_fitting_int_dtype(len(symbols)))
    lines = len(MMapIndexedDataset.Index(f"{prefix}.idx"))
    total = unknown = 0
    # Read, not mapped: pages of a mapped file would count as memory in use.
    with Path(f"{prefix}.bin").open("rb") as file:
        while part := file.read(PART * dtype.itemsize):
            tokens = np.frombuffer(part, dtype)
            total += len(tokens)
            unknown += int((tokens == symbols.unk()).sum())
    return total - lines, unknown
