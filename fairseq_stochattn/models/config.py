"""Configurations of our archs: fairseq's own model flags as one flat dataclass, plus ours.

fairseq's transformer, lstm and roberta still declare their flags on an argparse parser; hydra and
typed configurations want a dataclass. The fields are read off that parser, so they are never
written twice. What fairseq's arch functions decide defaults to None, "not set": they fill it in by
their own rules (the decoder width follows the encoder's, and so on).
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
from dataclasses import MISSING, field, fields, make_dataclass
from functools import cache
from typing import Any, Optional, get_type_hints

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import merge_with_parent
from omegaconf import DictConfig, OmegaConf, open_dict

logger = logging.getLogger(__name__)


def is_typed(model: type) -> bool:
    """Whether fairseq declares this model's flags by a dataclass (transformer_lm does)."""
    return getattr(model, "__dataclass", None) is not None


@cache
def flags_of(model: type, base_preset: Callable[[Namespace], None]) -> type[FairseqDataclass]:
    """The flags of a fairseq model class as a flat dataclass; None where the arch decides."""
    if is_typed(model):
        return getattr(model, "__dataclass")
    preset = Namespace()
    base_preset(preset)
    columns: dict[str, tuple] = {}
    # A class may repeat its base's flags without their defaults: the base still knows them.
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
    switch = isinstance(action, (_StoreTrueAction, _StoreFalseAction))
    kind = bool if switch else action.type if action.type in (int, float, bool) else str
    default = None if arch_decides or action.default == SUPPRESS else action.default
    metadata = {"help": action.help or action.dest.replace("_", " ")}
    return action.dest, Optional[kind], field(default=default, metadata=metadata)


def join_configs(name: str, *parts: type[FairseqDataclass], **defaults: Any) -> type:
    """One dataclass with the fields of all ``parts`` (the first to name a field has its say)."""
    columns: dict[str, tuple] = {}
    for part in parts:
        types = get_type_hints(part)  # fairseq refuses annotations that are still strings
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


def set_defaults(args: Any, **values: Any) -> None:
    """What an arch decides where the user did not: ``args`` is a namespace or a configuration."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def complete(
    config: DictConfig | FairseqDataclass | Namespace,
    dataclass: type[FairseqDataclass],
    preset: Callable[[Namespace], None],
    typed: bool,
) -> Namespace:
    """Any configuration a model may be built from → the flat namespace fairseq's models read.

    Missing fields get the dataclass' defaults, then the arch's; None means "not set", except in
    models that fairseq itself has ``typed`` by a dataclass: they read every field.
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
        # Outside a full configuration there is nothing that ${task.…} could refer to.
        values = {k: v for k, v in values.items() if not str(v).startswith("${")}
    args = Namespace(**{k: v for k, v in values.items() if typed or v is not None})
    preset(args)
    return args


def _copy_within_parent(config: DictConfig) -> DictConfig:
    """A copy that still resolves ``${task.…}``: merging removes unknown keys from its argument."""
    copy = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    copy.__dict__["_parent"] = config.__dict__["_parent"]
    with open_dict(copy):
        copy._name = config.get("_name")
    return copy
