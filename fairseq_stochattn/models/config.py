"""Configurations of archs with methods: fairseq's model flags and this plugin's in one dataclass.

fairseq's transformer, lstm and roberta declare their flags on an argparse parser, but hydra needs a
dataclass, so the fields of the dataclass are generated from that parser. A flag whose default
depends on the arch is None ("not set") until fairseq's arch function sets it (for example, the
default of the decoder's width is the encoder's width).
"""

from __future__ import annotations

import logging
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    Namespace,
    _StoreFalseAction,
    _StoreTrueAction,
)
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from typing import Any, Optional, get_type_hints

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import merge_with_parent
from omegaconf import DictConfig, OmegaConf, open_dict

logger = logging.getLogger(__name__)


def is_typed(model: type) -> bool:
    """Whether fairseq declares the flags of this class in a dataclass, as for transformer_lm."""
    return getattr(model, "__dataclass", None) is not None


@cache
def flags_of(model: type, base_preset: Callable[[Namespace], None]) -> type[FairseqDataclass]:
    """The flags of a model or criterion as a flat dataclass.

    Flags that the arch function ``base_preset`` sets have the default None, so that the chosen arch
    can set them.
    """
    if is_typed(model):
        return getattr(model, "__dataclass")
    preset = Namespace()
    base_preset(preset)
    columns: dict[str, tuple] = {}
    # A class may repeat a flag of its base class without the default, so base classes are read too.
    for cls in model.__mro__:
        if "add_args" not in vars(cls):
            continue
        parser = ArgumentParser(argument_default=SUPPRESS, add_help=False, allow_abbrev=False)
        vars(cls)["add_args"].__get__(None, model)(parser)
        for action in parser._actions:
            known = columns.get(action.dest)
            if known is None or (known[2].default is None and not hasattr(preset, action.dest)):
                columns[action.dest] = _column(action, hasattr(preset, action.dest))
    return make_dataclass(f"{model.__name__}Flags", columns.values(), bases=(FairseqDataclass,))


def _column(action: Action, arch_decides: bool) -> tuple[str, Any, Any]:
    """Convert a flag of an argparse parser to the name, type and field of a dataclass."""
    switch = isinstance(action, (_StoreTrueAction, _StoreFalseAction))
    kind = bool if switch else action.type if action.type in (int, float, bool) else str
    default = None if arch_decides or action.default == SUPPRESS else action.default
    metadata = {"help": action.help or action.dest.replace("_", " ")}
    if len(action.option_strings) > 1:
        metadata["argparse_alias"] = action.option_strings[1]
    return action.dest, Optional[kind], field(default=default, metadata=metadata)


def join_configs(name: str, *parts: type[FairseqDataclass], **defaults: Any) -> type:
    """Return one dataclass with the fields of all ``parts``; if names repeat, the first is used.

    ``defaults`` replace the defaults of the fields that they name.
    """
    columns: dict[str, tuple] = {}
    for part in parts:
        types = get_type_hints(part)  # fairseq does not accept annotations that are strings
        for entry in fields(part):
            if entry.name in columns or entry.name.startswith("_"):
                continue
            if entry.default_factory is not MISSING:
                column = field(default_factory=entry.default_factory, metadata=entry.metadata)
            else:
                value = defaults.get(entry.name, entry.default)
                column = field(default=value, metadata=entry.metadata)
            columns[entry.name] = (entry.name, types[entry.name], column)
    return make_dataclass(name, columns.values(), bases=(FairseqDataclass,))


def without_defaults(part: type[FairseqDataclass]) -> type[FairseqDataclass]:
    """Return a dataclass with the same fields, but with default None ("not set").

    Interpolated defaults, such as ``${optimization.lr}``, stay.
    """
    types = get_type_hints(part)
    columns = []
    for entry in fields(part):
        kind, default = types[entry.name], entry.default
        if not is_interpolated(entry):
            kind, default = kind if kind is Any else Optional[kind], None
        columns.append((entry.name, kind, field(default=default, metadata=entry.metadata)))
    return make_dataclass(part.__name__, columns, bases=(FairseqDataclass,))


def is_interpolated(entry: Field) -> bool:
    """Whether the field's default refers to another flag, such as ``${optimization.lr}``."""
    return str(entry.default).startswith("${")


def set_defaults(args: Any, **values: Any) -> None:
    """Set each named flag of a namespace or configuration that is missing or None."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def complete(
    config: DictConfig | FairseqDataclass | Namespace,
    dataclass: type[FairseqDataclass],
    preset: Callable[[Namespace], None],
    typed: bool,
) -> Namespace:
    """Convert a configuration to the flat namespace that fairseq's models read.

    Missing flags get the defaults of ``dataclass``, then those of ``preset``. Flags that are None
    are removed, unless the model is ``typed`` (see ``is_typed``), because such models read every
    field.
    """
    if isinstance(config, DictConfig):
        known = {entry.name for entry in fields(dataclass)}
        for key in [k for k in config if k not in known]:
            logger.warning("ignoring model option %s: this arch has no such option", key)
        merged = merge_with_parent(dataclass(), _copy_within_parent(config), remove_missing=True)
        values = OmegaConf.to_container(merged, resolve=True, enum_to_str=True)
    else:
        values = {entry.name: entry.default for entry in fields(dataclass)}
        values.update(vars(config))
        # ${task.…} can be resolved only in a configuration of the whole run.
        values = {k: v for k, v in values.items() if not str(v).startswith("${")}
    args = Namespace(**{k: v for k, v in values.items() if typed or v is not None})
    preset(args)
    return args


def _copy_within_parent(config: DictConfig) -> DictConfig:
    """A copy of ``config`` with the same parent, so that ``${task.…}`` can still be resolved.

    A copy is needed because ``merge_with_parent`` removes unknown keys from its argument.
    """
    copy = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    copy.__dict__["_parent"] = config.__dict__["_parent"]
    with open_dict(copy):
        copy._name = config.get("_name")
    return copy
