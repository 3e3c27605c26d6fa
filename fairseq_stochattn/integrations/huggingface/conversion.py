"""Puts methods into the models of transformers, and takes them out again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError
from ...core.method import METHODS
from ...core.selection import Selection
from ...core.settings import Settings
from ...core.stack import build_stacks
from . import deberta
from .interface import NAME, register
from .layers import ADDED, DISENTANGLED, AttentionLayers, Inputs, find_attentions


@dataclass(frozen=True)
class Choice:
    """The arguments of ``convert``, kept for ``save_pretrained``."""

    chain: Mapping[str, Settings]
    sites: Selection
    layers: Selection


def pretrained_models(model: nn.Module) -> list[nn.Module]:
    """The outermost models of transformers in ``model``; does not import transformers."""
    library = sys.modules.get("transformers")
    if library is None:
        return []
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") or not outer for outer, _ in found)
        if not inside and isinstance(module, library.PreTrainedModel):
            found.append((name, module))
    return [module for _, module in found]


def adopt(
    models: list[nn.Module],
    model: nn.Module,
    chain: Mapping[str, Settings],
    sites: Selection,
    layers: Selection,
) -> None:
    """Put the methods of ``chain`` into the attention of ``models``, parts of ``model``."""
    _refuse_checkpointing(models, chain)
    found = find_attentions(model)
    if not found:
        name = type(model).__name__
        older = "; T5 can be from transformers 5.15 on" if name.startswith("T5") else ""
        raise InputError(f"{name} contains no attention that can be converted{older}")
    stacks = build_stacks(
        chain, {site: [x for _, x in pairs] for site, pairs in found.items()}, sites, layers
    )
    register()
    reference = next(model.parameters())
    for site, pairs in found.items():
        pairs[0][1].attention_stack = stacks[site]
        for module, layer in pairs:
            if site == "cross" and "decoder" in stacks:
                object.__setattr__(layer, "query_stack", stacks["decoder"])
            _attach(module, layer.to(reference.device, reference.dtype).train(module.training))
    for pretrained in models:
        for part in pretrained.modules():
            if hasattr(part, "config") and hasattr(part, "set_attn_implementation"):
                part._stochattn_previous = part.config._attn_implementation
    with without_warnings():
        for pretrained in models:
            pretrained.set_attn_implementation(NAME)


def is_converted(model: nn.Module) -> bool:
    """Whether ``model`` contains converted attention of transformers."""
    return any(isinstance(module, AttentionLayers) for module in model.modules())


def release(model: nn.Module) -> None:
    """Undo ``adopt``: plain attention with the trained weights."""
    for module in list(model.modules()):
        if hasattr(module, ADDED):
            delattr(module, ADDED)
            module._stochattn_inputs.remove()
            del module._stochattn_inputs
            if hasattr(module, "plain_class"):
                deberta.release(module)
    with without_warnings():
        for pretrained in pretrained_models(model):
            previous = pretrained._stochattn_previous
            pretrained.set_attn_implementation(previous)
            for part in pretrained.modules():
                if hasattr(part, "_stochattn_previous"):
                    del part._stochattn_previous


def begin(model: nn.Module) -> None:
    """Before a forward pass: shared layers count their calls from 0 again."""
    for module in model.modules():
        if isinstance(module, AttentionLayers):
            module.calls = 0


def _attach(module: nn.Module, layer: nn.Module) -> None:
    if not hasattr(module, ADDED):
        setattr(module, ADDED, AttentionLayers())
        module._stochattn_inputs = module.register_forward_pre_hook(_keep_inputs, with_kwargs=True)
        if type(module).__name__.endswith(DISENTANGLED):
            deberta.adopt(module)
    getattr(module, ADDED).layers.append(layer)


def _keep_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward pre-hook of an attention module: keeps its inputs for the attention function."""
    queries: Tensor = args[0] if args else kwargs["hidden_states"]
    added: AttentionLayers = getattr(module, ADDED)
    keys = queries
    if added.layers[0].site == "cross":
        others = [*args[1:], kwargs.get("key_value_states"), kwargs.get("encoder_hidden_states")]
        states = [x for x in others if isinstance(x, Tensor) and x.dim() == 3]
        keys = states[0] if states else None
    if kwargs.get("past_key_values") is not None:
        keys = None
    added.inputs = Inputs(queries, keys)


def _refuse_checkpointing(models: list[nn.Module], chain: Mapping[str, Settings]) -> None:
    for model in models:
        for name in chain if model.is_gradient_checkpointing else ():
            if not METHODS[name].stateless:
                raise InputError(
                    f"gradient checkpointing runs every layer twice, which {name} does not "
                    "support: call model.gradient_checkpointing_disable() first"
                )


@contextmanager
def without_warnings() -> Any:
    """Silence transformers, which warns that DeBERTa does not follow its attention interface."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
