"""Hypothesis strategies that damage valid input: bytes, trees of Python values, and JSON texts.

Random bytes alone seldom get past the first line of a reader, so most cases start from a valid
file and change a few places of it.
"""

from __future__ import annotations

import copy
import json
import math
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fairseq_stochattn.core.errors import InputError
from steps.errors import PrepError

CASES = int(os.environ.get("STOCHATTN_FUZZ_CASES", 2000))  # per target
MAX_GROWTH = 1 << 30  # bytes of memory that the cases of one test may need in addition
# Replaced in the JSON text, because json.dumps cannot write these two.
_DEEP, _DIGITS = "@deep@", "@digits@"
_UNWRITABLE = {f'"{_DEEP}"': "[" * 5000 + "]" * 5000, f'"{_DIGITS}"': "9" * 5000}
ODD_NUMBERS = [0, 1, -1, 3, 0.5, -0.0, 2**31, 10**7, 2**63, 10**400, 1e308, 5e-324, math.nan]
ODD_TEXTS = ["", " ", "x", "7", "NaN", "\x00", "\ud800", "é\u2028\n", "../x", "/", "a b", "x" * 999]
ODD_CONTAINERS = [[], {}, [[]], [None], [1, "x"], {"": None}, {"x": [{}]}, [[[[[[1]]]]]]]
ODD_VALUES = [None, True, False, math.inf, *ODD_NUMBERS, *ODD_TEXTS, *ODD_CONTAINERS]

OUTCOMES: Counter[tuple[str, str]] = Counter()  # (test, accepted or refused) → cases that ran
_index = st.integers(0, 1 << 20)
_changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "insert", "delete", "repeat", "swap"]),
        _index,
        st.integers(0, 255),
        st.sampled_from([b"\x00", b"\xff\xfe", b'"', b"\n", b"\t", b"[", b"{", b"9" * 20, b"\xc3"]),
    ),
    min_size=1,
    max_size=4,
)
_edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "replace", "replace", "remove", "add", "rename", "wrap"]),
        _index,
        st.sampled_from([*ODD_VALUES, _DEEP, _DIGITS]),
    ),
    max_size=3,
)


def cases(share: float = 1.0) -> Callable:
    """The settings of a fuzz test: ``share`` of ``CASES``, the same cases in every run.

    With STOCHATTN_FUZZ_RANDOM, every run has other cases.
    """
    return settings(
        max_examples=max(1, math.ceil(share * CASES)),
        derandomize="STOCHATTN_FUZZ_RANDOM" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def one_line_or_success() -> Iterator[None]:
    """Within the block, the project's own errors are allowed, with a message of one short line."""
    before = _peak_memory()
    outcome = "refused"
    try:
        yield
        outcome = "accepted"
    except (InputError, PrepError) as error:
        _check_message(str(error))
    except SystemExit as error:
        _check_message(error.code)
    finally:
        OUTCOMES[os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0], outcome] += 1
    assert _peak_memory() - before < MAX_GROWTH


def _check_message(message: object) -> None:
    assert isinstance(message, str), f"an exit without a message: {message!r}"
    assert len(message.splitlines()) == 1, f"not one line: {message!r}"
    assert len(message) < 2000, f"a message of {len(message)} characters"
    message.encode()  # a message with half a character could not be printed


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def damaged(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Random bytes, or one of the ``valid`` contents with one to four changes."""
    changed = st.builds(_damage, st.sampled_from(valid), _changes)
    return st.one_of(changed, changed, changed, st.binary(max_size=60))


def _damage(content: bytes, changes: list[tuple[str, int, int, bytes]]) -> bytes:
    data = bytearray(content)
    for kind, place, number, inserted in changes:
        at = place % (len(data) + 1)
        if kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = inserted
        elif kind == "delete":
            del data[at : at + number]
        elif kind == "repeat":
            data[at:at] = data[at : at + number]
        elif kind == "swap":
            data[at : at + 2] = data[at : at + 2][::-1]
        elif at < len(data):
            data[at] = number if kind == "set" else data[at] ^ 1 << number % 8
    return bytes(data)


def edited(tree: Any) -> st.SearchStrategy[Any]:
    """Copies of nested dictionaries and lists with up to three values replaced, removed or added.

    The whole tree may be replaced as well.
    """
    return _edits.map(lambda edits: _edit(tree, edits))


def _edit(tree: Any, edits: list[tuple[str, int, Any]]) -> Any:
    root = [copy.deepcopy(tree)]
    for kind, place, value in edits:
        places = list(_places(root))
        if not places:
            break
        holder, key = places[place % len(places)]
        value = copy.deepcopy(value)
        if kind == "replace" or holder is root:
            holder[key] = value
        elif kind == "remove":
            del holder[key]
        elif kind == "wrap":
            holder[key] = [holder[key]]
        elif isinstance(holder, list):
            holder.insert(key, value)
        elif kind == "rename":
            holder["renamed"] = holder.pop(key)
        else:
            holder["added"] = value
    return root[0]


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value in the tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def json_text(tree: Any) -> bytes:
    """The tree as JSON; two values that ``edited`` inserts become extreme nesting and numbers."""
    text = json.dumps(tree)
    for name, content in _UNWRITABLE.items():
        text = text.replace(name, content)
    return text.encode()


def json_files(tree: Any) -> st.SearchStrategy[bytes]:
    """JSON texts of edited trees, and damaged bytes of the valid text."""
    texts = edited(tree).map(json_text)
    return st.one_of(texts, texts, texts, damaged(json_text(tree)))
