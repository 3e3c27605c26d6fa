"""Settings of methods: plain frozen dataclasses such as ``BABN(rho=1.5)``.

Each field carries its help text and, where it differs from ``<method>_<field>``, the name of the
fairseq flag that sets it. ``models/method_flags.py`` derives fairseq's flags from these fields.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from .errors import SettingError


def setting(default: Any, help: str, flag: str = "", flag_default: Any = MISSING) -> Any:
    """A dataclass field with a help text.

    ``flag`` names the fairseq flag, without dashes in front; the default is ``<method>_<field>``.
    ``flag_default`` is the default of the flag if it differs from that of the setting. It is used
    for methods that a flag switches on, such as ``--alignment``, whose default is ``none``.
    """
    metadata = {"help": help, "flag": flag}
    if flag_default is not MISSING:
        metadata["flag_default"] = flag_default
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Base class of all settings: checks its values when it is created."""

    method: ClassVar[str] = ""  # name of the method, filled in by its registration

    def __post_init__(self) -> None:
        for name, choices in choices_of(type(self)).items():
            value = getattr(self, name)
            if value not in choices:
                known = ", ".join(map(str, choices))
                raise SettingError(self, name, f"must be one of {known}, not {value!r}")
        self.check()

    def check(self) -> None:
        """Raise ``SettingError`` for values that the method cannot work with."""


def choices_of(settings: type[Settings]) -> dict[str, tuple[str, ...]]:
    """The allowed values of every field that is annotated as ``Literal``."""
    hints = get_type_hints(settings)
    return {
        entry.name: get_args(hints[entry.name])
        for entry in fields(settings)
        if get_origin(hints[entry.name]) is Literal
    }


def flag_name(settings: type[Settings], entry: Field) -> str:
    """The fairseq flag of a field, with underscores: ``babn_rho``."""
    return entry.metadata.get("flag") or f"{settings.method}_{entry.name}"
