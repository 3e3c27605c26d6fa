"""Finds the heads of a model, plain or converted, among its modules.

fairseq's multi-head attention keeps the heads of a projection as consecutive rows of one matrix:
head i of W_Q is rows i·d to (i + 1)·d − 1, where d is the size of a head. torch's
``nn.MultiheadAttention`` keeps W_Q, W_K and W_V in one matrix. Other modules describe their heads
by ``head_parameters()``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError
from .selection import parse_layers, parse_sites

PROJECTIONS = ("q", "k", "v")


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a parameter that holds several projections, used like a parameter itself."""

    parameter: nn.Parameter
    start: int
    stop: int

    @property
    def grad(self) -> Tensor | None:
        grad = self.parameter.grad
        return None if grad is None else grad[self.start : self.stop]

    def detach(self) -> Tensor:
        return self.parameter.detach()[self.start : self.stop]

    def numel(self) -> int:
        return self.detach().numel()

    @property
    def shape(self) -> torch.Size:
        return self.detach().shape

    @property
    def dtype(self) -> torch.dtype:
        return self.parameter.dtype

    @property
    def device(self) -> torch.device:
        return self.parameter.device


HeadParameter = nn.Parameter | RowBlock


@dataclass(frozen=True)
class HeadGroup:
    """The H heads of one attention module."""

    name: str  # of the module, as in named_modules()
    module: nn.Module
    site: str  # "encoder", "decoder" (both self-attention) or "cross"
    layer: int  # index among the attention modules of its site
    num_heads: int
    # "q", "k", "v" → the parameters that are split into heads along their first dimension.
    parameters: dict[str, list[HeadParameter]]


def by_head(parameter: Tensor, num_heads: int) -> Tensor:
    """(H·d, …) → (H, d·…): a view in which every row is one head."""
    return parameter.view(num_heads, -1)


def first_attribute(owner: object, names: Sequence[str]) -> Any:
    """The first of the named attributes that ``owner`` has and that is not None, else None."""
    found = (getattr(owner, name, None) for name in names)
    return next((value for value in found if value is not None), None)


def head_parameters(module: nn.Module) -> dict[str, list[HeadParameter]] | None:
    """The parameters of a module's heads by projection, None if the module has no heads."""
    if hasattr(module, "head_parameters"):
        return module.head_parameters()
    if not hasattr(module, "num_heads"):
        return _transformers_parameters(module)
    projections = [getattr(module, f"{kind}_proj", None) for kind in PROJECTIONS]
    if all(isinstance(x, nn.Module) for x in projections):
        return {
            kind: list(x.parameters()) for kind, x in zip(PROJECTIONS, projections, strict=True)
        }
    if isinstance(module, nn.MultiheadAttention):
        return _torch_parameters(module)
    return None


def _torch_parameters(module: nn.MultiheadAttention) -> dict[str, list[HeadParameter]]:
    width, found = module.embed_dim, {}
    for number, kind in enumerate(PROJECTIONS):
        rows = (number * width, (number + 1) * width)
        if module.in_proj_weight is None:
            parts: list[HeadParameter] = [getattr(module, f"{kind}_proj_weight")]
        else:
            parts = [RowBlock(module.in_proj_weight, *rows)]
        if module.in_proj_bias is not None:
            parts.append(RowBlock(module.in_proj_bias, *rows))
        found[kind] = parts
    return found


# The projections of attention modules in Hugging Face's transformers, by family.
_TRANSFORMERS = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("query_proj", "key_proj", "value_proj"),
)


def _transformers_parameters(module: nn.Module) -> dict[str, list[HeadParameter]] | None:
    """As ``head_parameters``; keys and values that several heads share are left out."""
    if num_heads(module) is None:
        return None
    for names in _TRANSFORMERS:
        found = [getattr(module, name, None) for name in names]
        if all(isinstance(x, nn.Linear) for x in found):
            return {
                kind: list(x.parameters())
                for kind, x in zip(PROJECTIONS, found, strict=True)
                if x.out_features == found[0].out_features
            }
    return None


def num_heads(module: nn.Module) -> int | None:
    """The number of heads of an attention module, None if it does not say."""
    names = ("num_heads", "num_attention_heads", "n_heads")
    found = first_attribute(module, names)
    if found is None and isinstance(getattr(module, "is_causal", None), bool):
        found = first_attribute(getattr(module, "config", None), names)
    return found


def find_heads(model: nn.Module) -> list[HeadGroup]:
    """Every attention module of the model that has heads, in the order of ``named_modules()``.

    Modules inside a module with ``auxiliary = True``, such as those in ELECTRA's generator, are
    left out: they serve the training of the model and are not part of it.
    """
    found: list[HeadGroup] = []
    seen: Counter[str] = Counter()
    modules = dict(model.named_modules())
    auxiliary = tuple(f"{x}." for x, m in modules.items() if getattr(m, "auxiliary", False))
    for name, module in modules.items():
        if name.startswith(auxiliary):
            continue
        parameters = head_parameters(module)
        if parameters is None:
            continue
        site = site_of(name, modules)
        found.append(HeadGroup(name, module, site, seen[site], num_heads(module), parameters))
        seen[site] += 1
    return found


def select_heads(
    groups: Sequence[HeadGroup],
    sites: str,
    layers: str,
    names: tuple[str, str] = ("sites", "layers"),
) -> list[HeadGroup]:
    """The groups of the selected sites and layers.

    ``names`` are the names of the two selections in error messages.
    """
    if not groups:
        raise InputError("this model has no attention with heads")
    present = list(dict.fromkeys(group.site for group in groups))
    chosen = []
    for site in parse_sites(sites, present, names[0]):
        of_site = [group for group in groups if group.site == site]
        indices = parse_layers(layers, len(of_site), site, names[1])
        chosen += [group for group in of_site if group.layer in indices]
    return chosen


def site_of(name: str, modules: Mapping[str, nn.Module]) -> str:
    """The site of the attention module ``name`` of a model, given all its named modules.

    In ``nn.TransformerDecoderLayer``, ``self_attn`` is decoder and ``multihead_attn`` cross
    attention. Elsewhere a module is cross attention if its ``encoder_decoder_attention`` is True or
    its name contains ``cross``, decoder attention if its ``is_causal`` is True or a module that
    contains it is called decoder, and encoder attention otherwise.
    """
    parent, _, leaf = name.rpartition(".")
    if getattr(modules[name], "encoder_decoder_attention", False):
        return "cross"
    if "cross" in leaf or leaf in ("multihead_attn", "encoder_attn", "EncDecAttention"):
        return "cross"
    if "crossattention" in name.split("."):  # BERT as a decoder
        return "cross"
    inside_decoder = "decoder" in name.split(".") or getattr(modules[name], "is_causal", False)
    if inside_decoder or isinstance(modules.get(parent), nn.TransformerDecoderLayer):
        return "decoder"
    return "encoder"


def held_parts(
    parts: Sequence[HeadParameter], held: Mapping[nn.Parameter, nn.Parameter]
) -> tuple[HeadParameter, ...]:
    """The tensors that the optimizer updates for ``parts``: parameters or their fp32 copies.

    ``held`` maps the model's parameters to them. Parts that are not optimized are left out.
    """
    found: list[HeadParameter] = []
    for part in parts:
        parameter = part.parameter if isinstance(part, RowBlock) else part
        if parameter in held:
            own = held[parameter]
            found.append(
                RowBlock(own, part.start, part.stop) if isinstance(part, RowBlock) else own
            )
    return tuple(found)
