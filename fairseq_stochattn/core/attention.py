"""The one attention function of all methods, backbones and frameworks.

    logits → methods → mask → softmax → methods again → values

Shapes: logits and weights (B, H, T, S), q (B, H, T, d), k and v (B, H, S, d).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .context import AttentionContext
from .method import MethodDict
from .softmax import softmax
from .torchscript import refuse_tracing


def attend(
    logits: Tensor, context: AttentionContext, methods: MethodDict, observed: bool = False
) -> Tensor:
    """The attention weights (B, H, T, S) of the logits QKᵀ/√d, in fp32 or better.

    Without a method that keeps them, the logits are overwritten. ``observed`` says that the caller
    has called ``observe`` of all methods.
    """
    refuse_tracing()
    product_qk = logits
    for method in () if observed else methods.values():
        method.observe(context)
    for method in methods.values():
        logits = method(logits, context)
    if context.blocked is None:
        masked = logits
    elif logits is product_qk and all(method.stateless for method in methods.values()):
        # Nobody kept QKᵀ and its backward pass does not need it: mask it in place.
        masked = logits.add_(context.attention_mask.additive(logits.dtype))
    else:
        masked = context.mask(logits)
    precision = torch.promote_types(masked.dtype, torch.float32)
    weights = softmax(masked, precision)
    for method in methods.values():
        weights = method.reweigh(weights, context)
    return weights


def attend_fused(context: AttentionContext, v: Tensor, methods: MethodDict, scale: float) -> Tensor:
    """softmax(scale·QKᵀ)V, (B, H, T, d), in one kernel; all methods must be passive."""
    refuse_tracing()
    for method in methods.values():
        method.observe(context)
    visible = None if context.blocked is None else ~context.blocked
    return F.scaled_dot_product_attention(context.q, context.k, v, visible, scale=scale)


def product(a: Tensor, b: Tensor) -> Tensor:
    """(B, H, m, n) · (B, H, n, p) → (B, H, m, p).

    Up to a third faster with three axes than torch.matmul with four, which shows in decoding.
    """
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])
