"""What all commands share: the parser class, the conversion of errors, texts of common flags.

Every command is one file with these names:

- ``DESCRIPTION``: one sentence, the first line of ``--help``;
- ``EXAMPLE``: a complete command line, the last line of ``--help``;
- ``build_parser()``: the flags;
- ``main(argv=None)``: runs the command and returns its exit status.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from fairseq import utils
from fairseq.data import data_utils

from .. import models  # noqa: F401  (registers archs, tasks, criterions and optimizers)
from ..analysis.fairseq_errors import reading
from ..compat import exit_on_bad_input
from ..core.errors import InputError
from ..core.json_input import short

Main = Callable[[Sequence[str] | None], int]
MAX_SEED = 2**32 - 1
_LIBRARIES = r"(fairseq|fairseq_cli|hydra|omegaconf|torch|numpy|sklearn|transformers)(\.|$)"

EXAMPLE_MARK = "Example: "

# Help texts of flags that several commands have.
DATA_HELP = "folder of binarised data, as for fairseq-train"
CHECKPOINT_HELP = "checkpoint of plain fairseq or of this package"
SUBSET_HELP = "split of the data (default: %(default)s)"
OVERRIDES_HELP = "dictionary of checkpoint settings to change (default: %(default)s)"
USER_DIR_HELP = "folder of another fairseq plugin to load"
TRAINING_SEED_HELP = "random seed (default: the seed of the training)"
FP16_HELP = "compute in half precision"
CPU_HELP = "use the CPU even if there is a GPU"


def command(main: Main) -> Main:
    """Decorator of a command's ``main``: bad input ends it with one line on stderr and status 1.

    Messages of libraries are shown only if they are warnings or errors that the user can act on.
    """

    @wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        with exit_on_bad_input(), log_level(logging.WARNING, ""), no_warnings_of_libraries():
            try:
                status = main(argv)
                sys.stdout.flush()  # a full disk shows now, not when Python exits
                return status
            except BrokenPipeError:
                # The reader of a pipe, such as head, has gone: nothing is left to say to it.
                _drop_output()
                return 1
            except OSError as error:
                _drop_output()
                where = f"{error.filename}: " if error.filename else ""
                raise InputError(f"{where}{error.strerror or error}") from None

    return run


@contextmanager
def log_level(level: int, *names: str) -> Iterator[None]:
    """Within the block, these loggers have this level; the name "" is that of the root logger.

    fairseq lets every library log everything to stderr, from the moment that it is imported.
    """
    loggers = [logging.getLogger(name) for name in names]
    previous = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, previous, strict=True):
            logger.setLevel(old)


@contextmanager
def no_warnings_of_libraries() -> Iterator[None]:
    """Within the block, Python warnings about code of other packages are hidden.

    They concern deprecated functions of torch, numpy and hydra that fairseq calls.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=_LIBRARIES)
        yield


def _drop_output() -> None:
    """Discard what stdout still buffers, if it cannot be written.

    Python writes it once more at exit, and would report that error a second time.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_output(path: Path, flag: str) -> None:
    """Raise before any work is done if a file cannot be written to ``path``."""
    if path.is_dir():
        raise InputError(f"{flag} {path} is a directory")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: its parent directory does not exist")
    if path.exists() and not path.is_file():
        raise InputError(f"{flag} {path} is not a regular file")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{flag} {path}: the directory {path.parent} cannot be written to")


def seed(text: str) -> int:
    """Parse the value of ``--seed``; the limits are those of numpy's generators."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_SEED:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {MAX_SEED}, not '{short(text)}'"
        )
    return value


def load_user_dir(path: str | None) -> None:
    """Import the fairseq plugin in the folder ``path``. Errors of the plugin itself pass."""
    if path is None:
        return
    if not Path(path).is_dir():
        raise InputError(f"--user-dir {path} is not a directory")
    with reading(f"--user-dir {path}", raised_by=["fairseq.utils"]):
        utils.import_user_module(argparse.Namespace(user_dir=path))


def require_subword_kind(kind: str | None) -> None:
    """Raise unless fairseq can join subwords of this kind, the value of ``--remove-bpe``."""
    with reading(f"--remove-bpe {kind}"):
        data_utils.post_process("", kind)


class _HelpFormatter(argparse.HelpFormatter):
    """Adds the default to the help of every option that does not name it; keeps the example."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = (None, False, argparse.SUPPRESS)
        if not action.option_strings or action.default in silent or "default:" in action.help:
            return action.help
        return f"{action.help} (default: %(default)s)"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLE_MARK) else super()._fill_text(text, width, indent)


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error as one line, without the usage text.

    ``example`` is a complete command line; it is the end of the help.
    """

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _HelpFormatter)
        if example:
            kwargs["epilog"] = f"{EXAMPLE_MARK}{example}"
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within the block, the attribute ``name`` of a module or object is ``value``."""
    missing = object()
    previous = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if previous is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, previous)
