"""Reads word vectors from a text file (GloVe, word2vec, fastText) with one word per line.

fairseq's ``parse_embedding`` is not used because it skips the first line (GloVe files have no
header), stores every vector of the file, and fails at words that contain spaces (in GloVe 840B).
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from ..compat import UsageError

logger = logging.getLogger(__name__)
FLAG = "--encoder-embed-path"


def load_vectors(path: Path, dictionary: Dictionary, embedding: nn.Embedding) -> int:
    """Copy the file's vectors into the embedding, and return the number of words with a vector."""
    words = {dictionary[i]: i for i in range(len(dictionary)) if i != dictionary.pad()}
    try:
        vectors = read_vectors(path, words, embedding.embedding_dim)
    except FileNotFoundError:
        raise UsageError(
            f"{FLAG}: {path} does not exist (a trained checkpoint does not need it: load it with "
            "--model-overrides \"{'encoder_embed_path': None}\")"
        ) from None
    except OSError as error:
        raise UsageError(f"{FLAG}: {path} cannot be read: {error.strerror}") from None
    if not vectors:
        raise UsageError(
            f"{FLAG}: {path} has none of the dictionary's words; was the data prepared in words, "
            "not subwords (data-prep: --subwords none)?"
        )
    with torch.no_grad():
        for word, vector in vectors.items():
            embedding.weight[words[word]] = vector
    total = len(dictionary) - dictionary.nspecial
    logger.info("%s: vectors for %d of the dictionary's %d words", path, len(vectors), total)
    return len(vectors)


def read_vectors(path: Path, words: dict[str, int], dimension: int) -> dict[str, Tensor]:
    """Return the vectors of those ``words`` that the file has; other lines are not checked."""
    found: dict[str, Tensor] = {}
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        first = file.readline()
        given, is_header = _dimension(first)
        if given == 0:
            raise UsageError(
                f"{FLAG}: {path} {'is not a file of word vectors' if first else 'is empty'}"
            )
        if given != dimension:
            raise UsageError(
                f"{FLAG}: the vectors of {path} have {given} numbers, but --encoder-embed-dim is "
                f"{dimension}"
            )
        if not is_header:
            file.seek(0)
        for number, line in enumerate(file, 2 if is_header else 1):
            # Only lines whose first word is needed are split, since files have millions of lines.
            if line[: line.find(" ")] not in words:
                continue
            word, *values = line.rstrip().rsplit(" ", dimension)
            if word in words:
                found[word] = _vector(values, dimension, f"{FLAG}: line {number} of {path}")
    return found


def _dimension(first: str) -> tuple[int, bool]:
    """The dimension of the vectors, read from the first line, and whether that line is a header.

    A header consists of the number of words and the dimension. The dimension is 0 if the line is
    not a header and has no vector.
    """
    fields = first.split()
    if len(fields) == 2 and all(x.isdecimal() for x in fields):
        return int(fields[1]), True
    numbers = 0
    while numbers < len(fields) - 1 and _is_number(fields[-1 - numbers]):
        numbers += 1
    return numbers, False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _vector(values: list[str], dimension: int, where: str) -> Tensor:
    """Parse a vector; exits if it does not have ``dimension`` finite numbers."""
    if len(values) == dimension and all(map(_is_number, values)):
        vector = torch.tensor([float(x) for x in values])
        if vector.isfinite().all():
            return vector
    raise UsageError(f"{where} is not a word and {dimension} numbers")
