"""Export of a checkpoint to plain fairseq, which can then load it without this plugin.

This is possible if the model computes plain attention, softmax(QKᵀ/√d)V, at test time. The export
drops the parameters of the methods and replaces the arch. All other parameters are unchanged.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from .. import compat
from ..core.errors import InputError
from ..core.files import atomic_file
from ..core.method import METHODS
from ..core.tensor_file import save_tensors
from ..criterions.attention_losses import AttentionLosses, criterion_config
from ..models.backbone import PLAIN_ARCHS
from ..models.config import complete, is_typed
from ..models.embeddings import EmbeddingConfig, flags_plain_fairseq_lacks
from ..models.layer_decay import LayerDecayConfig
from ..models.lstm import RecurrentConfig
from ..models.method_flags import AttentionConfig, method_names, settings_flags, settings_from
from ..models.pruning import take_kept_layers
from ..tasks.kinds import default_criterion

_PLUGIN = __package__.rpartition(".")[0]
_PLUGIN_MODULES = {"attention_methods", "attention_stacks"}


def is_plugin_parameter(parameter: str) -> bool:
    """Whether a parameter belongs to one of this plugin's attention methods, by its name."""
    return not _PLUGIN_MODULES.isdisjoint(parameter.split("."))


def is_plain_fairseq(arch: str) -> bool:
    """Whether the arch exists in fairseq without this plugin."""
    return ARCH_MODEL_REGISTRY[arch].__module__.startswith("fairseq.")


def checkpoint_arch(state: dict[str, Any]) -> str:
    """The arch that a checkpoint was trained with."""
    config = as_dict(state.get("cfg")).get("model")
    if isinstance(config, (dict, DictConfig)):
        arch = config.get("_name")
    else:
        arch = getattr(config, "_name", None) or getattr(config, "arch", None)
    if arch is None:
        raise InputError("the file is not a fairseq checkpoint: its configuration has no arch")
    return arch


def plain_model_flags(state: dict[str, Any], arch: str) -> Namespace:
    """All model flags of a checkpoint of this plugin.

    Raises if the model does not compute plain attention at test time.
    """
    given = state["cfg"]["model"]
    args = complete(
        OmegaConf.create(given) if isinstance(given, dict) else given,
        ARCH_MODEL_REGISTRY[arch].config,
        preset=lambda args: None,
        typed=True,
    )
    take_kept_layers(args)  # plain fairseq would prune the layers of a pruned model once more
    for name in method_names(args):
        method = METHODS[name]
        if not method.is_plain_at_test(settings_from(method.Settings, args)):
            raise InputError(
                f"{name} attention is not plain attention at test time, so a plain model would "
                "give other outputs"
            )
    return args


def fairseq_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters of a checkpoint without those of this plugin's methods."""
    return {name: value for name, value in state["model"].items() if not is_plugin_parameter(name)}


def to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint of one of this plugin's archs to a plain fairseq checkpoint."""
    config, arch = state.get("cfg") or {}, checkpoint_arch(state)
    if arch not in PLAIN_ARCHS:
        raise InputError(f"nothing to export: the arch '{arch}' has no attention methods")
    if not as_dict(config.get("task")):
        raise InputError("the file is not a fairseq checkpoint: its configuration has no task")
    if is_plain_fairseq(PLAIN_ARCHS[arch]):
        _check_task(as_dict(config.get("task")).get("_name"))
    args = plain_model_flags(state, arch)
    backbone = ARCH_MODEL_REGISTRY[arch].backbone
    plain_flags = {entry.name for entry in fields(backbone.plain_config())}
    unsupported = flags_plain_fairseq_lacks(args, plain_flags)
    if unsupported:
        raise InputError(
            f"plain fairseq has no {' '.join(unsupported)}; use --to huggingface instead"
        )
    if getattr(args, "lstm_attention", "general") != "general":
        raise InputError(f"plain fairseq has no --lstm-attention {args.lstm_attention}")
    dropped = _plugin_flags() - plain_flags - {"_name", "criterion"}
    plain_args = {k: v for k, v in vars(args).items() if k not in dropped}
    plain_args["_name"] = PLAIN_ARCHS[arch]
    if not is_typed(backbone.model):
        # A model without a dataclass of flags reads model and task flags from one namespace.
        given = {k: v for k, v in plain_args.items() if v is not None}
        task_flags = as_dict(config.get("task"))
        plain_args = Namespace(**{**task_flags, **given, "arch": PLAIN_ARCHS[arch]})
    weights = fairseq_weights(state)
    criterion = _plain_criterion(config)
    # "criterion" holds the parameters of a criterion; plain fairseq's criterions have none.
    plain = {**state, "model": weights, "criterion": None}
    plain["cfg"] = {**config, "model": plain_args, "criterion": criterion}
    if isinstance(config.get("task"), Namespace):
        # A task without a dataclass of flags stores the flags of the whole run. sentence_ranking
        # reads the name of the criterion from these flags.
        flags = {**vars(config["task"]), "criterion": criterion["_name"]}
        plain["cfg"] |= {"task": Namespace(**flags), "criterion": {**flags, **criterion}}
    if len(weights) < len(state["model"]):
        # Optimizer state is stored by the position of a parameter, and dropping parameters shifts
        # the positions.
        plain.pop("last_optimizer_state", None)
    return plain


def export(source: Path, destination: Path, force: bool = False) -> str:
    """Write ``source`` as a plain fairseq checkpoint to ``destination`` and return its new arch.

    If the export fails, ``destination`` is not changed.
    """
    if destination.exists() and not force:
        raise InputError(f"{destination} exists already (--force overwrites it)")
    state = compat.load_checkpoint(str(source))
    compat.require_weights(source, state)
    plain = to_plain(state)
    with atomic_file(destination) as partial:
        save_tensors(plain, partial)
    return checkpoint_arch(plain)


def as_dict(config: Any) -> dict[str, Any]:
    """One section of a checkpoint's configuration as a dictionary.

    fairseq stores a section as a namespace, an omegaconf object, a dictionary or None. Anything
    else counts as empty.
    """
    if isinstance(config, Namespace):
        return vars(config)
    if isinstance(config, DictConfig):
        config = OmegaConf.to_container(config)
    return dict(config) if isinstance(config, dict) else {}


def _check_task(name: str | None) -> None:
    """Raise if the task belongs to this plugin."""
    task = TASK_REGISTRY.get(name)
    if task is not None and task.__module__.startswith(f"{_PLUGIN}."):
        raise InputError(f"the task {name} belongs to {_PLUGIN}: plain fairseq has no such task")


def _plain_criterion(config: Any) -> dict[str, Any]:
    """The configuration of the criterion that this plugin's criterion wraps.

    fairseq-validate will use it.
    """
    given = as_dict(config.get("criterion"))
    criterion = CRITERION_REGISTRY.get(given.get("_name"))
    if criterion is None or not issubclass(criterion, AttentionLosses):
        return given
    name = given.get("task_criterion", "auto")
    if name == "auto":
        name = default_criterion(as_dict(config.get("task"))["_name"])
    flags = {entry.name for entry in fields(criterion_config(name))}
    return {**{k: v for k, v in given.items() if k in flags}, "_name": name}


def _plugin_flags() -> set[str]:
    """The names of all model flags that this plugin adds to fairseq's."""
    methods = (settings_flags(method.Settings) for method in METHODS.values())
    configs = (AttentionConfig, EmbeddingConfig, LayerDecayConfig, RecurrentConfig, *methods)
    return {entry.name for config in configs for entry in fields(config)}
