"""Any optimizer registered in fairseq as a base: its flags under their own names, and its class.

A flag that several optimizers have may have several defaults (``--momentum`` is 0 for sgd, 0.99 for
nag), so here every flag is None until it is given, and the base then decides.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import Field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import OPTIMIZER_REGISTRY as _REGISTRY
from fairseq.optim import FairseqOptimizer
from omegaconf import OmegaConf

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.config import flags_of, is_interpolated, is_typed, join_configs, unset

# Composite is no rule of its own: it takes an optimizer for each group of parameters.
_NO_BASES = {"repulsive", "composite"}


def base_names() -> list[str]:
    return sorted(_REGISTRY.keys() - _NO_BASES)


def with_base_flags(name: str, own: type[FairseqDataclass]) -> type[FairseqDataclass]:
    """The configuration of a wrapping optimizer: its own flags and those of all bases."""
    # Untyped ones first: they know --weight-decay by its short name, --wd, too.
    bases = sorted((_REGISTRY[base] for base in base_names()), key=is_typed)
    return join_configs(name, own, *(unset(_flags(base)) for base in bases))


def base_class(name: str) -> type[FairseqOptimizer]:
    if name not in base_names():
        known = ", ".join(base_names())
        raise UsageError(f"--repulsive-base: unknown optimizer '{name}' (known: {known})")
    return _REGISTRY[name]


def base_config(name: str, config: Any) -> Any:
    """What the base is built from: its defaults, and those of its flags that are given."""
    base = base_class(name)
    its = {entry.name: entry.default for entry in _entries(base)}
    for other in (entry for known in base_names() for entry in _entries(_REGISTRY[known])):
        given = getattr(config, other.name, None) is not None and not is_interpolated(other)
        if given and other.name not in its:
            flag = other.name.replace("_", "-")
            raise UsageError(f"--{flag}: --repulsive-base {name} has no such flag")
    values = {flag: getattr(config, flag, None) for flag in its}
    values = {flag: value for flag, value in values.items() if value is not None}
    if is_typed(base):
        return OmegaConf.merge(OmegaConf.structured(_flags(base)()), values)
    return Namespace(**{**its, **values, "lr": config.lr})


def _entries(base: type[FairseqOptimizer]) -> list[Field]:
    return [entry for entry in fields(_flags(base)) if not entry.name.startswith("_")]


def _flags(base: type[FairseqOptimizer]) -> type[FairseqDataclass]:
    return flags_of(base, _no_preset)


def _no_preset(args: Namespace) -> None:
    """Optimizers have no archs."""
