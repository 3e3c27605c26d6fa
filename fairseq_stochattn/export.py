"""Back to plain fairseq: a trained checkpoint of ours as one that needs no plugin.

Where the attention at test time is plain attention with the same weights, dropping the methods'
own parameters and naming fairseq's arch is all there is to do; the weights stay bit for bit.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_stochattn import compat
from fairseq_stochattn.attention.method import METHODS, chain_of
from fairseq_stochattn.attention.stack import AttentionConfig
from fairseq_stochattn.criterions.attention_losses import (
    DEFAULTS,
    AttentionLosses,
    criterion_config,
)
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.files import whole_file
from fairseq_stochattn.models.backbone import PLAIN_ARCHS
from fairseq_stochattn.models.config import complete, is_typed
from fairseq_stochattn.models.embeddings import EmbeddingConfig, beyond_plain
from fairseq_stochattn.models.layer_decay import LayerDecayConfig

_OURS = {"attention_methods", "attention_stacks"}


def is_ours(parameter: str) -> bool:
    """Whether a parameter of a checkpoint belongs to a method or a stack, not to fairseq."""
    return not _OURS.isdisjoint(parameter.split("."))


def arch_of(state: dict[str, Any]) -> str:
    """The arch that a checkpoint was made with."""
    model_config = (state.get("cfg") or {}).get("model")
    if isinstance(model_config, (dict, DictConfig)):
        arch = model_config.get("_name")
    else:
        arch = getattr(model_config, "_name", None) or getattr(model_config, "arch", None)
    if arch is None:
        raise UsageError("the file is no fairseq checkpoint: it does not tell its arch")
    return arch


def flags_of(state: dict[str, Any], arch: str) -> Namespace:
    """All model flags of a checkpoint of ours; refused where its attention is not plain."""
    given = state["cfg"]["model"]
    args = complete(
        OmegaConf.create(given) if isinstance(given, dict) else given,
        ARCH_MODEL_REGISTRY[arch].config,
        preset=lambda args: None,
        typed=True,
    )
    for method in chain_of(args):
        if not METHODS[method].is_plain_at_test(args):
            raise UsageError(
                f"{method} attention is not plain attention at test time: a plain checkpoint "
                "cannot express it"
            )
    return args


def weights_of(state: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters that are fairseq's own."""
    return {name: value for name, value in state["model"].items() if not is_ours(name)}


def to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of one of our archs → the same as a plain fairseq checkpoint."""
    config, arch = state.get("cfg") or {}, arch_of(state)
    if arch not in PLAIN_ARCHS:
        raise UsageError(f"nothing to export: '{arch}' is no arch of fairseq with our attention")
    if ARCH_MODEL_REGISTRY[PLAIN_ARCHS[arch]].__module__.startswith("fairseq."):
        _refuse_own_task(as_dict(config.get("task")).get("_name"))
    args = flags_of(state, arch)
    backbone = ARCH_MODEL_REGISTRY[arch].backbone
    known = {entry.name for entry in fields(backbone.plain_config())}
    foreign = beyond_plain(args, known)
    if foreign:
        raise UsageError(
            f"plain fairseq has no {' '.join(foreign)}; --to huggingface can express it"
        )
    ours = {entry.name for part in _our_parts() for entry in fields(part)} - known - {"_name"}
    plain_args = {k: v for k, v in vars(args).items() if k not in ours}
    plain_args["_name"] = PLAIN_ARCHS[arch]
    if not is_typed(backbone.model):
        # fairseq's untyped models read one flat namespace, the task's flags among them.
        set_flags = {k: v for k, v in plain_args.items() if v is not None}
        task_flags = as_dict(config.get("task"))
        plain_args = Namespace(**{**task_flags, **set_flags, "arch": PLAIN_ARCHS[arch]})
    weights = weights_of(state)
    criterion = _plain_criterion(config)
    plain = {**state, "model": weights, "criterion": None}  # an opponent of the model, if any
    plain["cfg"] = {**config, "model": plain_args, "criterion": criterion}
    if isinstance(config.get("task"), Namespace):
        # A task that fairseq has not typed holds all flags, and may look at the criterion's name.
        flags = {**vars(config["task"]), "criterion": criterion["_name"]}
        plain["cfg"] |= {"task": Namespace(**flags), "criterion": {**flags, **criterion}}
    if len(weights) < len(state["model"]):
        # The optimizer counts parameters by position; with some gone its state fits no more.
        plain.pop("last_optimizer_state", None)
    return plain


def export(source: Path, destination: Path, force: bool = False) -> str:
    """Write ``source`` as a plain fairseq checkpoint, whole or not at all; returns its arch."""
    if destination.exists() and not force:
        raise UsageError(f"{destination} exists already (--force overwrites it)")
    plain = to_plain(compat.load_checkpoint(str(source)))
    with whole_file(destination) as partial:
        torch.save(plain, partial)
    return arch_of(plain)


def _refuse_own_task(name: str | None) -> None:
    task = TASK_REGISTRY.get(name)
    if task is not None and task.__module__.startswith(f"{__package__}."):
        raise UsageError(f"the task {name} is one of fairseq_stochattn: plain fairseq has no such")


def _plain_criterion(config: Any) -> dict[str, Any]:
    """The criterion that ours wrapped, with its own flags: what fairseq-validate will look for."""
    given = as_dict(config.get("criterion"))
    ours = CRITERION_REGISTRY.get(given.get("_name"))
    if ours is None or not issubclass(ours, AttentionLosses):
        return given
    name = given.get("task_criterion", "auto")
    if name == "auto":
        name = DEFAULTS[as_dict(config.get("task"))["_name"]]
    wanted = {entry.name for entry in fields(criterion_config(name))}
    return {**{k: v for k, v in given.items() if k in wanted}, "_name": name}


def as_dict(config: Any) -> dict[str, Any]:
    """A part of a checkpoint's configuration, whatever fairseq has kept it as."""
    if isinstance(config, Namespace):
        return vars(config)
    return OmegaConf.to_container(config) if isinstance(config, DictConfig) else dict(config or {})


def _our_parts() -> list[type]:
    return [
        AttentionConfig,
        EmbeddingConfig,
        LayerDecayConfig,
        *(method.Config for method in METHODS.values()),
    ]
