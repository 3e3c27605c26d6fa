"""torch's own ``nn.MultiheadAttention`` with methods between QKᵀ and softmax.

The class of a module is changed in place: its parameters, their names and all references to the
module remain valid. Shapes: T queries, S keys, B rows of the batch, H heads, d = C/H.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.attention import attend, attend_fused, product
from ..core.context import AttentionContext, AttentionMask, mask_from_both, mask_from_padding
from ..core.errors import InputError
from ..core.gradients import through_projection
from ..core.head_hooks import HasHeadHooks, HeadOutputs
from ..core.heads import site_of
from ..core.method import MethodDict
from ..core.selection import SITES
from ..core.stack import AttentionStack


class StochasticTorchAttention(HasHeadHooks, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` whose logits pass through ``attention_methods``."""

    stack: AttentionStack
    attention_methods: MethodDict
    layer_index: int  # within its stack
    # The stack whose ``query_padding`` applies to these queries; None means ``stack``.
    query_stack: AttentionStack | None

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """False, so that ``nn.TransformerEncoderLayer`` does not bypass our forward pass in eval.

        It uses its fused kernel only if this is True. The property hides the instance's own value
        without changing it, so ``release`` restores it.
        """
        return False

    @classmethod
    def adopt(cls, attention: nn.MultiheadAttention, layer: int) -> None:
        """Turn a module into a ``StochasticTorchAttention``, in place."""
        attention.__class__ = cls
        attention.layer_index = layer
        object.__setattr__(attention, "query_stack", None)

    def release(self) -> None:
        """Turn the module back into torch's own."""
        own = ("attention_methods", "attention_stack", "stack", "query_stack", "layer_index")
        for name in own:
            if hasattr(self, name):
                delattr(self, name)
        self.__class__ = nn.MultiheadAttention

    def sizes(self) -> dict[str, int]:
        return {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "query_dim": self.embed_dim,
            "key_dim": self.kdim,
        }

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention.forward``, but returned weights are those before dropout."""
        self_attention = key is query
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = rows = self._projected(query, key, value)  # (T|S, B, C)
        if self.bias_k is not None:
            batch = k.size(1)
            k = torch.cat([k, self.bias_k.repeat(1, batch, 1)])
            v = torch.cat([v, self.bias_v.repeat(1, batch, 1)])
            key_padding_mask, attn_mask = _one_more_key(key_padding_mask, attn_mask)
        q, k, v = (self._split_heads(x) for x in (q, k, v))  # (B, H, T|S, d)
        if self.add_zero_attn:
            k, v = (torch.cat([x, x.new_zeros((*x.shape[:2], 1, x.size(3)))], 2) for x in (k, v))
            key_padding_mask, attn_mask = _one_more_key(key_padding_mask, attn_mask)
        padding = _as_padding(key_padding_mask)
        mask, bias = self._masks(padding, attn_mask, is_causal, q, k)
        self._begin(padding if self_attention and k.size(2) == q.size(2) else None)
        context = AttentionContext(
            q=q,
            k=k,
            query_input=query,
            key_input=key,
            query_padding=self._query_padding(q),
            attention_mask=mask,
            stack=self.stack,
            # Not with --add-bias-kv or --add-zero-attn, whose keys have no input.
            projected=partial(self._through_projections, rows, query, key)
            if k.size(2) == len(key)
            else None,
        )
        scale = self.head_dim**-0.5
        if not need_weights and bias is None and self._can_fuse():
            out = attend_fused(context, v, self.attention_methods, scale)  # (B, H, T, d)
            weights = None
        else:
            logits = product(q * scale, k.transpose(2, 3))  # (B, H, T, S)
            if bias is not None:
                logits = logits + bias
            weights = attend(logits, context, self.attention_methods)  # fp32
            dropped = F.dropout(weights.type_as(v), self.dropout, self.training)
            out = product(dropped, v)  # (B, H, T, d)
            if self.head_hooks:
                self.call_head_hooks(HeadOutputs(weights, out, context.query_padding))
        out = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))  # (T, B, C)
        out = out.squeeze(1) if not batched else out.transpose(0, 1) if self.batch_first else out
        if not need_weights:
            return out, None
        weights = weights.mean(dim=1) if average_attn_weights else weights
        return out, weights if batched else weights.squeeze(0)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        inputs = (query, key, value)
        return tuple(F.linear(x, *given) for x, given in zip(inputs, self._linears(), strict=True))

    def _linears(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of W_Q, W_K and W_V."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return list(zip(weights, biases, strict=True))

    def _through_projections(
        self, rows: tuple[Tensor, ...], query: Tensor, key: Tensor
    ) -> tuple[Tensor, ...]:
        """Queries and keys (B, H, T|S, d) whose gradients reach W_Q and W_K only."""
        return tuple(
            self._split_heads(through_projection(out, x, *given))
            for out, x, given in zip(rows[:2], (query, key), self._linears()[:2], strict=True)
        )

    def _split_heads(self, x: Tensor) -> Tensor:
        """(S, B, C) → (B, H, S, d)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _masks(
        self,
        padding: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        q: Tensor,
        k: Tensor,
    ) -> tuple[AttentionMask, Tensor | None]:
        queries, keys = q.size(2), k.size(2)
        if attn_mask is None and is_causal:
            attn_mask = torch.ones((queries, keys), dtype=torch.bool, device=q.device).triu(1)
        if attn_mask is None:
            return mask_from_padding(padding), None
        if attn_mask.dim() == 3:  # (B·H, T, S)
            attn_mask = attn_mask.unflatten(0, (-1, self.num_heads))
        return mask_from_both(padding, attn_mask)

    def _begin(self, query_padding: Tensor | None) -> None:
        """Clear the stack's state if a new forward pass has begun.

        A new pass has begun if the index of this layer is not larger than that of the layer that
        ran last.
        """
        last = self.stack.state.get("torch_layer", self.stack.num_layers)
        if self.layer_index <= last:
            self.stack.state.clear()
            self.stack.query_padding = query_padding
        self.stack.state["torch_layer"] = self.layer_index

    def _query_padding(self, q: Tensor) -> Tensor | None:
        stack = self.stack if self.query_stack is None else self.query_stack
        padding = stack.query_padding
        return padding if padding is not None and padding.shape == (q.size(0), q.size(2)) else None

    def _can_fuse(self) -> bool:
        """Whether torch's fused kernel can be used, which does not store logits and weights.

        Only in training, without dropout and head hooks, and if all methods are passive (they
        neither read nor change the logits).
        """
        passive = all(method.passive for method in self.attention_methods.values())
        return self.training and self.dropout == 0 and passive and not self.head_hooks


def _as_padding(mask: Tensor | None) -> Tensor | None:
    """A padding mask as booleans, True at padding.

    torch's layers pass it as floats: −inf at padding, 0 elsewhere.
    """
    if mask is None or not mask.is_floating_point():
        return mask
    return mask < 0


def _one_more_key(
    padding: Tensor | None, attn_mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Append to both masks one key that every query may attend to."""
    return tuple(None if mask is None else F.pad(mask, (0, 1)) for mask in (padding, attn_mask))


def attention_sites(model: nn.Module) -> dict[str, list[nn.MultiheadAttention]]:
    """Every ``nn.MultiheadAttention`` of a model by its site (``core.heads.site_of``)."""
    modules = dict(model.named_modules())
    found: dict[str, list[nn.MultiheadAttention]] = {site: [] for site in SITES}
    for name, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            found[site_of(name, modules)].append(module)
    return {site: attentions for site, attentions in found.items() if attentions}


def refuse_scripted(module: nn.Module) -> None:
    """Raise ``InputError`` for a scripted model, whose attention cannot be replaced."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "a scripted model cannot be converted: call convert on the nn.Module itself "
            "(a converted model cannot be scripted)"
        )
