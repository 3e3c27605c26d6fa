"""Converts the settings of methods to flags of fairseq, and parsed flags back to settings.

The field ``rho`` of the settings ``BABN`` becomes ``--babn-rho`` with the same default and help
text. All flags of methods are generated in this file.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, Optional, get_args, get_type_hints

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from .. import methods  # noqa: F401  (registers all methods)
from ..compat import UsageError, exit_on_bad_input
from ..core.method import METHODS, AttentionMethod
from ..core.settings import Settings, choices_of, flag_name
from ..core.stack import Chain, check_order


@dataclass
class AttentionConfig(FairseqDataclass):
    """The flags of all archs with methods: which methods are used, and where they act."""

    attention: str = field(
        default="deterministic",
        metadata={
            "help": "methods, comma-separated, in order of application; the default depends on the "
            "arch"
        },
    )
    attention_sites: str = field(
        default="all",
        metadata={
            "help": "where the methods act: all, or a comma-separated list of encoder "
            "(self-attention), decoder (self-attention), cross (attention from decoder to encoder)"
        },
    )
    attention_layers: str = field(
        default="all",
        metadata={
            "help": "layers where the methods act: all, first, last, or indices from 0 such as 0,2"
        },
    )
    fast_dropout: bool = field(
        default=False,
        metadata={
            "help": "on a CPU, draw dropout masks several times faster, from another stream of "
            "random numbers than plain fairseq"
        },
    )


SELECTION_FLAGS = ("--attention-sites", "--attention-layers")


@cache
def settings_flags(settings: type[Settings], *only: str) -> type[FairseqDataclass]:
    """Return a fairseq dataclass with one flag per setting, or only for those named in ``only``."""
    hints, choices = get_type_hints(settings), choices_of(settings)
    columns = []
    for entry in fields(settings):
        if only and entry.name not in only:
            continue
        default = flag_default(entry)
        kind = _flag_type(hints[entry.name], choices.get(entry.name), default)
        column = field(default=default, metadata={"help": entry.metadata["help"]})
        columns.append((flag_name(settings, entry), kind, column))
    return make_dataclass(f"{settings.__name__}Flags", columns, bases=(FairseqDataclass,))


def _flag_type(hint: Any, choices: tuple[str, ...] | None, default: Any) -> Any:
    """The type of a flag in a form that fairseq's dataclasses accept."""
    if choices is not None:
        values = [default, *choices] if default not in choices else list(choices)
        return ChoiceEnum(values)
    optional = type(None) in get_args(hint)
    kind = next((x for x in get_args(hint) if x is not type(None)), hint)
    return Optional[kind] if optional or default is None else kind


def flag_default(entry: Any) -> Any:
    """The default of a field's flag, which may differ from the default of the setting."""
    default = entry.metadata.get("flag_default", MISSING)
    return entry.default if default is MISSING else default


def settings_from(settings: type[Settings], config: Any) -> Settings:
    """Read the settings from the flags in ``config``; missing flags get the setting's default."""
    values = {}
    for entry in fields(settings):
        value = getattr(config, flag_name(settings, entry), MISSING)
        if value is MISSING or (value is None and entry.default is not None):
            continue  # the flag was not given
        if entry.name in choices_of(settings):
            value = str(value)
        values[entry.name] = value
    with exit_on_bad_input():
        return settings(**values)


def parse_methods(spec: str) -> list[str]:
    """Split a list of methods such as ``"babn,asa"`` into names; exits if a name is unknown."""
    names = [name.strip() for name in spec.split(",") if name.strip()]
    known = ", ".join(sorted(METHODS))
    if not names:
        raise UsageError(f"--attention is empty; known methods: {known}")
    for name in names:
        if name not in METHODS:
            raise UsageError(f"--attention: unknown method '{name}' (known: {known})")
    if len(set(names)) < len(names):
        raise UsageError(f"--attention: a method is named twice in '{spec}'")
    return names


def method_names(config: Namespace) -> list[str]:
    """The methods of a model: those in ``--attention``, then those that a flag switches on."""
    named = parse_methods(config.attention)
    switched_on = [name for name, method in METHODS.items() if is_switched_on(method, config)]
    return [*named, *(name for name in switched_on if name not in named)]


def is_switched_on(method: type[AttentionMethod], config: Namespace) -> bool:
    """Whether the method's own flag, such as ``--alignment ct``, adds it to the model."""
    if method.switch is None:
        return False
    entry = method.Settings.__dataclass_fields__[method.switch]
    off = flag_default(entry)
    value = getattr(config, flag_name(method.Settings, entry), off)
    return value is not None and str(value) != str(off)


def chain_from(config: Namespace) -> Chain:
    """The methods of a model in order of application, each with its settings."""
    with exit_on_bad_input():
        check_order(parse_methods(config.attention))
    chain = {}
    for name in method_names(config):
        method = METHODS[name]
        if method.switch is not None and not is_switched_on(method, config):
            entry = method.Settings.__dataclass_fields__[method.switch]
            flag = flag_name(method.Settings, entry).replace("_", "-")
            if flag_default(entry) in (None, "none"):
                raise UsageError(f"--attention {name} needs --{flag}, for example {entry.default}")
        chain[name] = settings_from(method.Settings, config)
    return chain
