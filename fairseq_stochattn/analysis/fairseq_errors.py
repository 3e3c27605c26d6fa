"""Turns fairseq's errors about bad files and flags into ``InputError``; mistakes of ours stay.

fairseq checks its input with assertions, and lets errors of any class of torch, numpy and omegaconf
pass. So the class of an error does not tell bad input from a mistake in a program. The place does:
an error that is raised in a file of this package, and is not an ``InputError``, is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.errors import InputError

_OURS = __package__.partition(".")[0]
# Errors of these classes have messages that make sense without the name of the class.
_SELF_EXPLAINING = (AssertionError, ValueError, RuntimeError, OSError, NotImplementedError)
# Modules of fairseq that check flags and data while models run.
_CHECKS = (
    *("fairseq.data", "fairseq.tasks", "fairseq.utils", "fairseq.scoring", "fairseq_cli"),
    *("fairseq.sequence_generator", "fairseq.search"),
)


@contextmanager
def reading(what: str, raised_by: Sequence[str] = ()) -> Iterator[None]:
    """Within the block, an error of another package becomes ``InputError(f"{what}: {cause}")``.

    The block must only read input and build objects from it. With ``raised_by``, only errors that
    are raised in these packages or modules are converted.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        place = _place(error)
        if _within(place, [_OURS]) or (raised_by and not _within(place, raised_by)):
            raise
        raise InputError(f"{what}: {cause(error)}") from None


@contextmanager
def running(what: str) -> Iterator[None]:
    """Like ``reading``, for a block that also runs models: converts only what fairseq checks.

    The layers of a model call torch with whatever this package gives them. So an error in torch or
    in a layer, or one that is not a failed check, may be a mistake of ours and is not converted.
    """
    try:
        yield
    except InputError:
        raise
    except (AssertionError, ValueError, NotImplementedError, OSError) as error:
        if not _within(_place(error), _CHECKS):
            raise
        raise InputError(f"{what}: {cause(error)}") from None


def cause(error: BaseException) -> str:
    """The first two lines of an error message, with the class of the error if it is needed.

    torch lists all mismatches of a state dict below a title, of which the first is enough.
    """
    name = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return name
    text = " ".join(lines[:2])
    # Most of fairseq's own errors are plain exceptions.
    if isinstance(error, _SELF_EXPLAINING) or type(error) is Exception:
        return text
    return f"{name}: {text}"


def _place(error: BaseException) -> str:
    """The name of the module that raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
