"""fairseq-preprocess in this process, and what is in the data it wrote."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from steps.errors import PrepError


@contextlib.contextmanager
def _quiet_fairseq() -> Iterator[None]:
    """fairseq reports every file; here its warnings are enough."""
    loggers = [logging.getLogger(name) for name in ("fairseq", "fairseq_cli.preprocess")]
    levels = [logger.level for logger in loggers]
    handlers = [list(logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with contextlib.redirect_stdout(None):
            yield
    finally:
        for logger, level, before in zip(loggers, levels, handlers, strict=True):
            logger.setLevel(level)
            for handler in set(logger.handlers) - set(before):
                logger.removeHandler(handler)  # fairseq-preprocess leaves its log file open
                handler.close()


def preprocess(out: Path, workers: int, *arguments: object) -> None:
    """One call of fairseq-preprocess."""
    from fairseq_cli import preprocess as fairseq_preprocess

    given = ["--destdir", out, "--workers", workers, *arguments]
    with (
        mock.patch("sys.argv", ["fairseq-preprocess", *map(str, given)]),
        _quiet_fairseq(),
    ):
        fairseq_preprocess.cli_main()


def binarise_text(
    texts: dict[str, Path], out: Path, workers: int, dictionary: Path | None = None
) -> None:
    """One text a split (``{"train": Path}``) into ``out``, with a dictionary or a new one."""
    prefixes = [x for split, path in texts.items() for x in (f"--{split}pref", path)]
    known = [] if dictionary is None else ["--srcdict", dictionary]
    preprocess(out, workers, "--only-source", *prefixes, *known)


def write_dictionary(symbols: Sequence[str], path: Path) -> None:
    """A fairseq dictionary of these symbols in this order; the counts only keep the order."""
    if any(len(symbol.split()) != 1 for symbol in symbols):
        raise PrepError("the vocabulary has symbols that are empty or hold spaces")
    lines = (f"{symbol} {len(symbols) - i}\n" for i, symbol in enumerate(symbols))
    path.write_text("".join(lines), encoding="utf-8")


def count_tokens(prefix: Path, dictionary: Path) -> tuple[int, int]:
    """Tokens of binarised data without the sentence ends, and how many of them are unknown."""
    from fairseq.data import Dictionary, data_utils

    symbols = Dictionary.load(str(dictionary))
    with _quiet_fairseq():
        data = data_utils.load_indexed_dataset(str(prefix), symbols)
    if data is None:
        raise PrepError(f"fairseq-preprocess wrote no {prefix}")
    unknown = sum(int((row == symbols.unk()).sum()) for row in data)
    return int(data.sizes.sum()) - len(data), unknown
