"""Errors of the Python API: each is a ``ValueError`` whose message is one line."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input. The message says what is wrong, what was found and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class SettingError(InputError):
    """A bad value of one setting.

    ``setting`` and ``problem`` are kept apart, so that a command can name its flag instead:
    ``rho must not be negative`` becomes ``--babn-rho must not be negative``.
    """

    def __init__(self, settings: object, setting: str, problem: str) -> None:
        super().__init__(f"{setting} {problem}")
        self.settings_class = type(settings)
        self.setting = setting
        self.problem = problem


def require_positive(settings: object, *names: str) -> None:
    """Raise ``SettingError`` unless each named setting is greater than 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise SettingError(settings, name, "must be positive")


def require_not_negative(settings: object, *names: str) -> None:
    """Raise ``SettingError`` unless each named setting is at least 0."""
    for name in names:
        if not getattr(settings, name) >= 0:
            raise SettingError(settings, name, "must not be negative")
