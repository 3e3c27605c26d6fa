"""The one error a user sees for bad input: one line on stderr, exit status 1, nothing written."""

from __future__ import annotations

from typing import Any


class UsageError(SystemExit):
    """Bad input at the command line or in a configuration.

    A ``SystemExit`` because fairseq wraps model loading in ``except Exception`` and would bury the
    cause under its own traceback; this passes through and ends the command with one line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"fairseq_stochattn: {' '.join(message.split())}")


def require_positive(config: Any, *names: str) -> None:
    """Refuse flags that must be greater than 0; ``names`` as the configuration has them."""
    for name in names:
        if getattr(config, name) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be positive")


def require_not_negative(config: Any, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} must not be negative")
