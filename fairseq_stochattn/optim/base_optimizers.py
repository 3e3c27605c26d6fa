"""The optimizers of fairseq that ``--optimizer repulsive`` can wrap, and their flags.

The wrapped optimizer is called the base. A flag that several bases share may have different
defaults (``--momentum`` is 0 for sgd and 0.99 for nag). So all flags of bases are None by default,
and the chosen base replaces None by its own default.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import Field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import OPTIMIZER_REGISTRY as _REGISTRY
from fairseq.optim import FairseqOptimizer
from omegaconf import OmegaConf

from ..compat import UsageError
from ..models.config import flags_of, is_interpolated, is_typed, join_configs, without_defaults

# "composite" has no update rule of its own: it applies one optimizer per group of parameters.
_NO_BASES = {"repulsive", "composite"}


def base_names() -> list[str]:
    """The names of all optimizers that can be wrapped."""
    return sorted(_REGISTRY.keys() - _NO_BASES)


def with_base_flags(name: str, own: type[FairseqDataclass]) -> type[FairseqDataclass]:
    """The configuration of a wrapping optimizer: its own flags and those of all bases."""
    # Bases without a dataclass first: only they define the short name --wd of --weight-decay.
    bases = sorted((_REGISTRY[base] for base in base_names()), key=is_typed)
    return join_configs(name, own, *(without_defaults(_flags(base)) for base in bases))


def base_class(name: str) -> type[FairseqOptimizer]:
    """The class of a base optimizer; exits if there is no such optimizer."""
    if name not in base_names():
        known = ", ".join(base_names())
        raise UsageError(f"--repulsive-base: unknown optimizer '{name}' (known: {known})")
    return _REGISTRY[name]


def base_config(name: str, config: Any) -> Any:
    """The configuration of the base alone: its defaults, replaced by the flags that are given.

    Exits if a flag is given that only other bases have.
    """
    base = base_class(name)
    defaults = {entry.name: entry.default for entry in _entries(base)}
    for other in (entry for known in base_names() for entry in _entries(_REGISTRY[known])):
        given = getattr(config, other.name, None) is not None and not is_interpolated(other)
        if given and other.name not in defaults:
            flag = other.name.replace("_", "-")
            raise UsageError(f"--{flag} is not a flag of --repulsive-base {name}")
    values = {flag: getattr(config, flag, None) for flag in defaults}
    values = {flag: value for flag, value in values.items() if value is not None}
    if is_typed(base):
        return OmegaConf.merge(OmegaConf.structured(_flags(base)()), values)
    return Namespace(**{**defaults, **values, "lr": config.lr})


def _entries(base: type[FairseqOptimizer]) -> list[Field]:
    return [entry for entry in fields(_flags(base)) if not entry.name.startswith("_")]


def _flags(base: type[FairseqOptimizer]) -> type[FairseqDataclass]:
    return flags_of(base, _no_preset)


def _no_preset(args: Namespace) -> None:
    """Does nothing: optimizers have no presets, unlike archs."""
