"""Generates the models ``<backbone>_<method>`` from the registries of backbones and of methods.

A backbone is a model class with a description of its attention sites: encoder self-attention,
decoder self-attention and cross-attention ("encoder", "decoder", "cross"). For every method that
can act at one of these sites, ``<backbone>_<method>`` is registered as a model, with a variant of
each of fairseq's presets: from ``transformer_iwslt_de_en`` follows
``transformer_babn_iwslt_de_en``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from fairseq.utils import eval_bool
from torch import nn

from ..compat import UsageError
from ..core.method import METHODS, on_registration
from .adapters import install_methods
from .config import complete, flags_of, is_typed, join_configs, set_defaults
from .dropout import use_fast_dropout
from .layer_decay import apply_factors
from .method_flags import AttentionConfig, method_names, settings_flags
from .pruning import PrunesLayers, take_kept_layers


@dataclass(frozen=True)
class Backbone:
    """A model class, its attention sites, and the modules that contain the attention."""

    name: str  # also the prefix of fairseq's presets
    model: type
    sites: tuple[str, ...]
    owners: Callable[[nn.Module], Sequence[nn.Module]]  # the model's encoders and decoders
    mixins: tuple[type, ...] = ()  # base classes in front of ``model`` that change its behaviour
    extra_config: type[FairseqDataclass] = FairseqDataclass  # flags that fairseq's model lacks
    # Presets that exist only with a method, because plain fairseq lacks some of their flags.
    presets: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)
    graphs: bool = False  # whether the attention is over a graph (core/graph_attention.py)
    # Defaults of method flags that differ in this backbone.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Applies the flags of ``extra_config`` to the model after its attention was replaced.
    finish: Callable[[nn.Module, Namespace], None] = lambda model, config: None

    def plain_config(self) -> type[FairseqDataclass]:
        """The flags of fairseq's model, as a dataclass."""
        return flags_of(self.model, ARCH_CONFIG_REGISTRY[self.name])


BACKBONES: dict[str, Backbone] = {}
PLAIN_ARCHS: dict[str, str] = {}  # arch with a method → the arch without a method that it extends


class RefusesMismatch:
    """Mixin for model classes: loading a checkpoint of another model exits with one line."""

    def load_state_dict(self, state_dict: dict, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().load_state_dict(state_dict, *args, **kwargs)
        except (RuntimeError, KeyError) as error:
            # torch's first line is a heading, then comes one line per mismatch.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            cause = lines[1] if len(lines) > 1 else lines[0]
            more = f" (and {len(lines) - 2} more)" if len(lines) > 2 else ""
            raise UsageError(f"the checkpoint does not fit this model: {cause}{more}") from None


class StochasticModel(PrunesLayers, RefusesMismatch):
    """Mixin for fairseq's model classes: installs attention methods after the model is built."""

    backbone: ClassVar[Backbone]
    arch: ClassVar[str]
    config: ClassVar[type[FairseqDataclass]]

    @classmethod
    def add_args(cls, parser: Any) -> None:
        for name, value in cls.backbone.defaults.items():
            if value is True:
                # fairseq's parser would take the flag as a switch that sets False.
                help_text = cls.config.__dataclass_fields__[name].metadata["help"]
                flag = f"--{name.replace('_', '-')}"
                parser.add_argument(flag, type=eval_bool, nargs="?", const=True, help=help_text)
        # Defaults are deleted, so that the arch sets all flags that the command line does not set.
        gen_parser_from_dataclass(parser, cls.config(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> nn.Module:
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or cls.arch
        args = complete(
            cfg, cls.config, ARCH_CONFIG_REGISTRY[arch], typed=is_typed(cls.backbone.model)
        )
        cls.prepare(args, task)
        refuse_empty_data(task)
        if cls.backbone.graphs:
            refuse_without_graphs(args)
        kept = take_kept_layers(args, getattr(task, "needs_generator", False))
        model = super().build_model(args, task)
        model.kept_layers = kept
        install_methods(cls.backbone.owners(model), args, kept)
        cls.backbone.finish(model, args)
        if args.fast_dropout:
            use_fast_dropout(model)
        apply_factors(task, model)
        return model

    @classmethod
    def prepare(cls, args: Namespace, task: Any) -> None:
        """Copy those of the task's flags into ``args`` that fairseq's models read from there.

        fairseq's argparse commands have one namespace for all flags, but hydra's configurations
        have one section for the task and one for the model.
        """
        for name in ("max_positions", "tokens_per_sample"):
            value = getattr(getattr(task, "cfg", None), name, None)
            if value is not None and not hasattr(args, name):
                setattr(args, name, value)


def refuse_without_graphs(args: Namespace) -> None:
    """Exit if a method does not work on graphs, whose nodes have no order and no text."""
    for name in method_names(args):
        if not METHODS[name].on_graphs:
            raise UsageError(f"--attention {name} does not work on graphs")
    if "babn" in method_names(args) and args.babn_upward != "heads":
        raise UsageError("--babn-upward positions: neighbours in a graph have no order; use heads")


def refuse_empty_data(task: Any) -> None:
    """Make ``task.load_dataset`` exit with the name of an empty split.

    fairseq would fail inside numpy without naming a file.
    """
    load = getattr(task, "load_dataset", None)
    if load is None or getattr(load, "refuses_empty_data", False):
        return

    @wraps(load)
    def load_dataset(split: str, *args: Any, **kwargs: Any) -> Any:
        message = f"the {split} set is empty: {getattr(task.cfg, 'data', '')}"
        try:
            loaded = load(split, *args, **kwargs)
        except ValueError as error:
            if "mmap an empty file" not in str(error):
                raise
            raise UsageError(message) from None
        if split in task.datasets and len(task.datasets[split]) == 0:
            raise UsageError(message)
        return loaded

    load_dataset.refuses_empty_data = True
    task.load_dataset = load_dataset


def register_backbone(backbone: Backbone) -> None:
    """Register the archs of a backbone for every method, including methods registered later."""
    BACKBONES[backbone.name] = backbone
    on_registration(lambda method: _register_pair(backbone, method))


def _register_pair(backbone: Backbone, method: str) -> None:
    """Register ``<backbone>_<method>`` and its presets, unless they share no attention site."""
    if not set(METHODS[method].sites) & set(backbone.sites):
        return
    if backbone.graphs and not METHODS[method].on_graphs:
        return
    name = f"{backbone.name}_{method}"
    config = join_configs(
        f"{name}_config",
        backbone.plain_config(),
        backbone.extra_config,
        AttentionConfig,
        *(settings_flags(METHODS[other].Settings) for other in METHODS),
        **{**backbone.defaults, **_defaults(method)},
    )
    contents = {"backbone": backbone, "arch": name, "config": config, "__module__": __name__}
    model = type(name, (StochasticModel, *backbone.mixins, backbone.model), contents)
    register_model(name, dataclass=config)(model)
    for plain in list(ARCH_MODEL_INV_REGISTRY[backbone.name]):
        if not plain.startswith(backbone.name):
            continue
        arch = name + plain[len(backbone.name) :]
        preset = _preset(ARCH_CONFIG_REGISTRY[plain], method)
        if arch == name:
            # register_model has registered an empty preset under this name: replace it.
            ARCH_CONFIG_REGISTRY[arch] = preset
        else:
            register_model_architecture(name, arch)(preset)
        PLAIN_ARCHS[arch] = plain
    for ending, defaults in backbone.presets.items():
        register_model_architecture(name, f"{name}_{ending}")(_preset(defaults, method))
        PLAIN_ARCHS[f"{name}_{ending}"] = backbone.name


def _preset(plain: Callable[[Any], None], method: str) -> Callable[[Any], None]:
    """Return an arch function that sets the defaults of ``plain``, then those of the method."""

    def preset(args: Any) -> None:
        plain(args)
        set_defaults(args, **_defaults(method))

    return preset


def _defaults(method: str) -> dict[str, Any]:
    """The flags whose defaults differ in the archs of a method, with these defaults."""
    return {"attention": method, **METHODS[method].arch_defaults}
