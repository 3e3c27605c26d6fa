"""Finds the attention modules of a transformers model, with their sites and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ...core.context import AttentionMask
from ...core.errors import InputError
from ...core.heads import first_attribute
from ...core.method import MethodDict
from ...core.selection import SITES
from ...core.stack import AttentionStack

ADDED = "stochattn"  # name of the child that convert adds to every attention module
DISENTANGLED = "DisentangledSelfAttention"  # DeBERTa, which has an attention of its own
# Names of the projection of the queries, and of the keys, in the families of transformers.
_QUERY = ("query", "q_proj", "q_lin", "q", "query_proj")
_KEY = ("key", "k_proj", "k_lin", "k", "key_proj")
_HEADS = ("num_attention_heads", "num_heads", "n_heads")
_HEAD_DIM = ("attention_head_size", "head_dim", "key_value_proj_dim")
# Modules of cross attention in BERT and GPT-2, BART and Marian, and T5.
_CROSS = {"crossattention", "encoder_attn", "EncDecAttention"}


class AttentionLayer(nn.Module):
    """The methods of one layer. ALBERT calls one attention module once per layer."""

    stack: AttentionStack
    attention_methods: MethodDict
    query_stack: AttentionStack | None  # whose query padding applies; None means ``stack``

    def __init__(self, site: str, layer: int, sizes: dict[str, int]) -> None:
        super().__init__()
        self.site = site
        self.layer_index = layer  # within its stack
        self._sizes = sizes
        object.__setattr__(self, "query_stack", None)

    def sizes(self) -> dict[str, int]:
        """The sizes of the layer, as fields of ``LayerInfo``."""
        return self._sizes

    def begin(self, mask: AttentionMask, queries: int) -> Tensor | None:
        """Clear the stack's state if a new forward pass has begun; returns the query padding.

        A new pass has begun if the index of this layer is not larger than that of the layer that
        ran last. The padding (B, T) of self-attention is that of its last T keys.
        """
        stack = self.stack
        if self.layer_index <= stack.state.get("last_layer", stack.num_layers):
            stack.state.clear()
            padding = mask.key_padding
            stack.query_padding = None
            if self.site != "cross" and padding is not None:
                stack.query_padding = padding[:, -queries:]
        stack.state["last_layer"] = self.layer_index
        return (stack if self.query_stack is None else self.query_stack).query_padding


@dataclass
class Inputs:
    """The inputs (B, T, C) of an attention module; ``keys`` is None for cached keys."""

    queries: Tensor
    keys: Tensor | None


class AttentionLayers(nn.Module):
    """The layers that one attention module computes, and its inputs in the present call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.calls = 0
        self.inputs: Inputs | None = None

    def next(self) -> AttentionLayer:
        """The layer of this call: the modules of a shared layer are called once per layer."""
        layer = self.layers[self.calls % len(self.layers)]
        self.calls += 1
        return layer

    def take_inputs(self) -> Inputs:
        """The inputs of this call, which are then forgotten: they may hold a graph."""
        inputs, self.inputs = self.inputs, None
        return inputs


def is_attention(module: nn.Module) -> bool:
    """Whether the module computes attention: it has a query projection and knows its mask."""
    if type(module).__name__.endswith(DISENTANGLED):
        return True
    causal = isinstance(getattr(module, "is_causal", None), bool)
    return causal and (_projection(module, _QUERY) is not None or hasattr(module, "c_attn"))


def find_attentions(model: nn.Module) -> dict[str, list[tuple[nn.Module, AttentionLayer]]]:
    """Every layer by site, in order of execution: its attention module and a new layer object."""
    found: dict[str, list[tuple[nn.Module, AttentionLayer]]] = {site: [] for site in SITES}
    for name, module in model.named_modules():
        if not is_attention(module):
            continue
        site = "encoder"
        if _CROSS & set(name.split(".")) or getattr(module, "is_cross_attention", False):
            site = "cross"
        elif getattr(module, "is_causal", False):
            site = "decoder"
        layers = found[site]
        for _ in range(_calls(module)):
            layers.append((module, AttentionLayer(site, len(layers), _sizes(module))))
    return {site: layers for site, layers in found.items() if layers}


def _projection(module: nn.Module, names: tuple[str, ...]) -> nn.Linear | None:
    found = first_attribute(module, names)
    return found if isinstance(found, nn.Linear) else None


def _calls(module: nn.Module) -> int:
    """How often one forward pass calls the module: more than once in ALBERT."""
    config = getattr(module, "config", None)
    groups = getattr(config, "num_hidden_groups", None)
    if groups is None:
        return 1
    if config.inner_group_num > 1 or config.num_hidden_layers % groups:
        raise InputError("ALBERT is converted only with inner_group_num=1 and groups of equal size")
    return config.num_hidden_layers // groups


def _sizes(module: nn.Module) -> dict[str, int]:
    config = getattr(module, "config", None)
    heads = first_attribute(module, _HEADS) or first_attribute(config, _HEADS)
    query, key = _projection(module, _QUERY), _projection(module, _KEY)
    width = getattr(module, "embed_dim", None) if query is None else query.in_features
    if width is None:  # the first DeBERTa, whose projections are one matrix
        width = module.in_proj.in_features
    head_dim = first_attribute(module, _HEAD_DIM) or width // heads
    return {
        "num_heads": heads,
        "head_dim": head_dim,
        "query_dim": width,
        "key_dim": width if key is None else key.in_features,
    }
