"""Backbone × method: fairseq's models with our attention, generated from two registries.

A backbone is one of fairseq's own model classes and the place of its attention. For every method
that can act there, ``<backbone>_<method>`` is registered as a model, and with it every preset that
fairseq has: ``transformer_iwslt_de_en`` gives ``transformer_babn_iwslt_de_en``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    register_model,
    register_model_architecture,
)
from torch import nn

from fairseq_stochattn.attention.method import METHODS, on_registration
from fairseq_stochattn.attention.stack import AttentionConfig
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.config import (
    complete,
    flags_of,
    is_typed,
    join_configs,
    set_defaults,
)
from fairseq_stochattn.models.hosts import host_methods
from fairseq_stochattn.models.layer_decay import follow_marks


@dataclass(frozen=True)
class Backbone:
    """One of fairseq's models: its class, where it attends, and which modules own that."""

    name: str  # also the prefix of fairseq's presets
    model: type
    sites: tuple[str, ...]
    owners: Callable[[nn.Module], Sequence[nn.Module]]
    mixins: tuple[type, ...] = ()  # over the class: what our archs do otherwise than fairseq's
    extra_config: type[FairseqDataclass] = FairseqDataclass
    # What the flags of ``extra_config`` add to the model once it is hosted.
    finish: Callable[[nn.Module, Namespace], None] = lambda model, config: None

    def plain_config(self) -> type[FairseqDataclass]:
        """The flags of the model without our attention."""
        return flags_of(self.model, ARCH_CONFIG_REGISTRY[self.name])


BACKBONES: dict[str, Backbone] = {}
PLAIN_ARCHS: dict[str, str] = {}  # our arch → the fairseq arch it extends


class TellsMismatch:
    """Mixin over a model class: a checkpoint of another model is refused in one line."""

    def load_state_dict(self, state_dict: dict, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().load_state_dict(state_dict, *args, **kwargs)
        except (RuntimeError, KeyError) as error:
            # torch lists every mismatch; the first line of them tells which model this is not.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            cause = lines[1] if len(lines) > 1 else lines[0]
            more = f" (and {len(lines) - 2} more)" if len(lines) > 2 else ""
            raise UsageError(f"the checkpoint does not fit this model: {cause}{more}") from None


class StochasticModel(TellsMismatch):
    """Mixin over a fairseq model class: builds it as fairseq does, then installs our attention."""

    backbone: ClassVar[Backbone]
    arch: ClassVar[str]
    config: ClassVar[type[FairseqDataclass]]

    @classmethod
    def add_args(cls, parser: Any) -> None:
        # Without defaults, so that what is not given on the command line is left to the arch.
        gen_parser_from_dataclass(parser, cls.config(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> nn.Module:
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or cls.arch
        args = complete(
            cfg, cls.config, ARCH_CONFIG_REGISTRY[arch], typed=is_typed(cls.backbone.model)
        )
        cls.prepare(args, task)
        refuse_empty_data(task)
        model = super().build_model(args, task)
        host_methods(cls.backbone.owners(model), args)
        cls.backbone.finish(model, args)
        follow_marks(task, model)
        return model

    @classmethod
    def prepare(cls, args: Namespace, task: Any) -> None:
        """What fairseq's own models read from the task's flags when there is one flat namespace."""
        for name in ("max_positions", "tokens_per_sample"):
            value = getattr(getattr(task, "cfg", None), name, None)
            if value is not None and not hasattr(args, name):
                setattr(args, name, value)


def refuse_empty_data(task: Any) -> None:
    """Let the task say which split is empty; fairseq fails inside numpy, with no file's name."""
    load = getattr(task, "load_dataset", None)
    if load is None or getattr(load, "refuses_empty_data", False):
        return

    @wraps(load)
    def load_dataset(split: str, *args: Any, **kwargs: Any) -> Any:
        complaint = f"the {split} set is empty: {getattr(task.cfg, 'data', '')}"
        try:
            loaded = load(split, *args, **kwargs)
        except ValueError as error:
            if "mmap an empty file" not in str(error):
                raise
            raise UsageError(complaint) from None
        if split in task.datasets and len(task.datasets[split]) == 0:
            raise UsageError(complaint)
        return loaded

    load_dataset.refuses_empty_data = True
    task.load_dataset = load_dataset


def register_backbone(backbone: Backbone) -> None:
    """Make the archs of this backbone for every method, those registered later included."""
    BACKBONES[backbone.name] = backbone
    on_registration(lambda method: _register_pair(backbone, method))


def _register_pair(backbone: Backbone, method: str) -> None:
    if not set(METHODS[method].sites) & set(backbone.sites):
        return
    name = f"{backbone.name}_{method}"
    config = join_configs(
        f"{name}_config",
        backbone.plain_config(),
        backbone.extra_config,
        AttentionConfig,
        *(METHODS[other].Config for other in METHODS),
        **_defaults(method),
    )
    contents = {"backbone": backbone, "arch": name, "config": config, "__module__": __name__}
    model = type(name, (StochasticModel, *backbone.mixins, backbone.model), contents)
    register_model(name, dataclass=config)(model)
    for plain in list(ARCH_MODEL_INV_REGISTRY[backbone.name]):
        if not plain.startswith(backbone.name):
            continue
        arch = name + plain[len(backbone.name) :]
        preset = _preset(plain, method)
        if arch == name:
            # register_model has put an empty preset there; fairseq's base preset belongs there.
            ARCH_CONFIG_REGISTRY[arch] = preset
        else:
            register_model_architecture(name, arch)(preset)
        PLAIN_ARCHS[arch] = plain


def _preset(plain: str, method: str) -> Callable[[Any], None]:
    def preset(args: Any) -> None:
        ARCH_CONFIG_REGISTRY[plain](args)
        set_defaults(args, **_defaults(method))

    return preset


def _defaults(method: str) -> dict[str, Any]:
    return {"attention": method, **METHODS[method].arch_defaults}
