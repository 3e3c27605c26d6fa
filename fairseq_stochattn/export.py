"""Back to plain fairseq: a trained checkpoint of ours as one that needs no plugin.

Where the attention at test time is plain attention with the same weights, dropping the methods'
own parameters and naming fairseq's arch is all there is to do; the weights stay bit for bit.
"""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import DictConfig, OmegaConf

from fairseq_stochattn import compat
from fairseq_stochattn.attention.method import METHODS, chain_of
from fairseq_stochattn.attention.stack import AttentionConfig
from fairseq_stochattn.criterions.attention_losses import DEFAULTS, AttentionLosses
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.backbone import PLAIN_ARCHS
from fairseq_stochattn.models.config import complete, is_typed

_OURS = {"attention_methods", "attention_stacks"}


def is_ours(parameter: str) -> bool:
    """Whether a parameter of a checkpoint belongs to a method or a stack, not to fairseq."""
    return not _OURS.isdisjoint(parameter.split("."))


def to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of one of our archs → the same as a plain fairseq checkpoint."""
    config = state.get("cfg") or {}
    model_config = config.get("model")
    arch = _arch_of(model_config)
    if arch is None:
        raise UsageError("the file is no fairseq checkpoint: it does not tell its arch")
    if arch not in PLAIN_ARCHS:
        raise UsageError(f"nothing to export: '{arch}' is no arch of fairseq_stochattn")
    model_class = ARCH_MODEL_REGISTRY[arch]
    args = complete(
        OmegaConf.create(model_config) if isinstance(model_config, dict) else model_config,
        model_class.config,
        preset=lambda args: None,
        typed=True,
    )
    for method in chain_of(args):
        if not METHODS[method].is_plain_at_test(args):
            raise UsageError(
                f"{method} attention is not plain attention at test time: a plain checkpoint "
                "cannot express it"
            )
    ours = {entry.name for part in _our_parts() for entry in fields(part)} - {"_name"}
    plain_args = {k: v for k, v in vars(args).items() if k not in ours}
    plain_args["_name"] = PLAIN_ARCHS[arch]
    if not is_typed(model_class.backbone.model):
        # fairseq's untyped models read one flat namespace, the task's flags among them.
        set_flags = {k: v for k, v in plain_args.items() if v is not None}
        task_flags = _as_dict(config.get("task"))
        plain_args = Namespace(**{**task_flags, **set_flags, "arch": PLAIN_ARCHS[arch]})
    weights = {name: value for name, value in state["model"].items() if not is_ours(name)}
    criterion = _plain_criterion(config)
    plain = {**state, "model": weights}
    plain["cfg"] = {**config, "model": plain_args, "criterion": criterion}
    if len(weights) < len(state["model"]):
        # The optimizer counts parameters by position; with some gone its state fits no more.
        plain.pop("last_optimizer_state", None)
    return plain


def export(source: Path, destination: Path, force: bool = False) -> str:
    """Write ``source`` as a plain fairseq checkpoint, whole or not at all; returns its arch."""
    if destination.exists() and not force:
        raise UsageError(f"{destination} exists already (--force overwrites it)")
    if not destination.parent.is_dir():
        raise UsageError(f"{destination.parent} is no directory")
    plain = to_plain(compat.load_checkpoint(str(source)))
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        torch.save(plain, partial)
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)
    return _arch_of(plain["cfg"]["model"])


def _arch_of(model_config: Any) -> str | None:
    if isinstance(model_config, (dict, DictConfig)):
        return model_config.get("_name")
    return getattr(model_config, "_name", None) or getattr(model_config, "arch", None)


def _plain_criterion(config: Any) -> dict[str, Any]:
    """The criterion that ours wrapped, with its own flags: what fairseq-validate will look for."""
    given = _as_dict(config.get("criterion"))
    ours = CRITERION_REGISTRY.get(given.get("_name"))
    if ours is None or not issubclass(ours, AttentionLosses):
        return given
    name = given.get("task_criterion", "auto")
    if name == "auto":
        name = DEFAULTS[_as_dict(config.get("task"))["_name"]]
    wanted = {entry.name for entry in fields(CRITERION_DATACLASS_REGISTRY[name])}
    return {**{k: v for k, v in given.items() if k in wanted}, "_name": name}


def _as_dict(config: Any) -> dict[str, Any]:
    if isinstance(config, Namespace):
        return vars(config)
    return OmegaConf.to_container(config) if isinstance(config, DictConfig) else dict(config or {})


def _our_parts() -> list[type]:
    return [AttentionConfig, *(method.Config for method in METHODS.values())]
