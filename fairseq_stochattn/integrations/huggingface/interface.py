"""The attention function that converted models of transformers call, and its mask function.

Both are registered under one name. ``model.set_attn_implementation`` then makes every attention
module call ``stochastic_attention``, so no class of transformers is changed. Shapes: queries
(B, H, T, d), keys and values (B, H or fewer, S, d).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ...core.attention import attend, product
from ...core.context import (
    BLOCKED_BELOW,
    AttentionContext,
    AttentionMask,
    mask_from_both,
    unblock_empty_rows,
)
from ...core.errors import InputError
from .layers import ADDED, AttentionLayers

NAME = "stochattn"


@cache
def register() -> None:
    """Make the attention known to transformers under the name ``stochattn``."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, stochastic_attention)
    AttentionMaskInterface.register(NAME, visible_keys)


def visible_keys(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask (B, 1, T, S), True where a query sees a key; None where every query sees all."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def stochastic_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, Tensor]:
    """The output (B, T, H, d) and the weights (B, H, T, S) of one attention module.

    ``position_bias`` is T5's, (1|B, H, T, S), added to the logits.
    """
    groups = query.size(1) // key.size(1)
    if groups > 1:  # Llama: several heads share their keys and values
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scaling = query.size(3) ** -0.5 if scaling is None else scaling
    # Scaled after the product, as in transformers: the outputs then equal its eager attention.
    logits = product(query, key.transpose(2, 3)).mul_(scaling)  # (B, H, T, S)
    if position_bias is not None:
        logits = logits + position_bias
    return attend_in_module(module, logits, (query, key, value), attention_mask, dropout)


def attend_in_module(
    module: nn.Module,
    logits: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    attention_mask: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Apply the methods of the module to the logits (B, H, T, S), then softmax and values.

    ``heads`` are the queries, keys and values (B, H, T|S, d). Returns the output (B, T, H, d) and
    the weights before dropout (B, H, T, S).
    """
    added: AttentionLayers | None = getattr(module, ADDED, None)
    if added is None:
        raise InputError(f"{type(module).__name__} is an attention module that sa.convert skipped")
    query, key, value = heads
    layer, inputs = added.next(), added.take_inputs()
    mask, bias = _masks(layer.stack, attention_mask)
    if bias is not None:
        logits = logits + bias
    padding = layer.begin(mask, query.size(2))
    if padding is not None and padding.shape != (query.size(0), query.size(2)):
        padding = None
    context = AttentionContext(
        q=query,
        k=key,
        query_input=inputs.queries.transpose(0, 1),
        key_input=None if inputs.keys is None else inputs.keys.transpose(0, 1),
        query_padding=padding,
        attention_mask=mask,
        stack=layer.stack,
    )
    weights = attend(logits, context, layer.attention_methods)  # at least fp32
    dropped = F.dropout(weights.type_as(value), dropout, module.training)
    return product(dropped, value).transpose(1, 2).contiguous(), weights


def _masks(stack: nn.Module, given: Tensor | None) -> tuple[AttentionMask, Tensor | None]:
    """The mask of transformers in our form, computed once for all layers that receive it.

    A mask of booleans is True where a query sees a key. A mask of floats is added to the logits.
    Also returns the finite part of a float mask.
    """
    last = getattr(stack, "last_mask", None)
    if last is None or last[0] is not given:
        last = given, _converted(given)
        stack.last_mask = last
    return last[1]


def _converted(given: Tensor | None) -> tuple[AttentionMask, Tensor | None]:
    if given is None:
        return AttentionMask(), None
    if given.is_floating_point():
        mask, bias = mask_from_both(None, given)
        return AttentionMask(_padding(given <= BLOCKED_BELOW), mask.blocked), bias
    blocked = ~given.bool()
    return AttentionMask(_padding(blocked), unblock_empty_rows(blocked)), None


def _padding(blocked: Tensor) -> Tensor:
    """(B, S): the keys that no query sees are padding."""
    return blocked.all(dim=2).all(dim=1)
