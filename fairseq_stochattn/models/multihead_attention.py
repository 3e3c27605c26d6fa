"""Multi-head attention with methods: training, eval, incremental decoding and beam search.

A subclass of fairseq's ``MultiheadAttention`` with the same parameters, initialisation and caches.
Its forward applies the methods between QKᵀ and softmax. Shapes: T queries, S keys, B sentences,
H heads, d = C/H. In beam search, fairseq may pass the keys of a sentence once for all its beams:
there are then B' = B / beams sets of keys, each attended by R = beams · T queries. Otherwise
B' = B and R = T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from ..compat import UsageError
from ..core.attention import attend, attend_fused, product
from ..core.context import AttentionContext
from ..core.gradients import through_projection
from ..core.head_hooks import HasHeadHooks, HeadOutputs
from ..core.method import MethodDict
from ..core.stack import AttentionStack

IncrementalState = dict[str, dict[str, Tensor | None]]


class StochasticMultiheadAttention(HasHeadHooks, MultiheadAttention):
    """Multi-head attention whose logits pass through ``attention_methods`` before the softmax."""

    if TYPE_CHECKING:  # torch.jit.trace would fail on these types before our own error
        stack: AttentionStack
        attention_methods: MethodDict

    @classmethod
    def adopt(cls, attention: MultiheadAttention) -> StochasticMultiheadAttention:
        """Convert fairseq's attention module to this class, in place, and return the module.

        Only the class is changed, so that parameters, their random initialisation, checkpoint
        names and wrappers around the layer stay as they are.
        """
        if getattr(attention, "use_xformers", False):
            raise UsageError(
                "--encoder/decoder-xformers-att-config cannot be combined with attention methods: "
                "xFormers does not compute the logits that they need; leave the flag out"
            )
        attention.__class__ = cls
        return attention  # type: ignore[return-value]

    def sizes(self) -> dict[str, int]:
        """The sizes of the layer, as fields of ``LayerInfo``."""
        return {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "query_dim": self.embed_dim,
            "key_dim": self.kdim,
        }

    def forward(
        self,
        query: Tensor,  # (T, B, C)
        key: Tensor | None,  # (S, B or B', C_k)
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,  # (B or B', S)
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,  # (T, S), (B, T, S) or (B, H, T, S)
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (T, B, C) and the attention weights.

        The weights are None without ``need_weights``, the mean over the heads (B, T, S) with it,
        and those of every head (H, B, T, S) with ``need_head_weights``. With ``before_softmax``
        the method returns masked logits and values instead, as fairseq does.
        """
        targets, batch, _ = query.shape
        key, value, key_padding_mask = self._key_source(
            query, key, value, key_padding_mask, incremental_state, static_kv
        )
        q = q_rows = self.q_proj(query)  # (T, B, C)
        k = k_rows = None if key is None else self.k_proj(key)  # (S, B', C)
        v = None if value is None else self.v_proj(value)
        if self.bias_k is not None and k is not None:
            k, v, key_padding_mask, attn_mask = self._add_bias(
                k, v, key_padding_mask, attn_mask, k.size(1)
            )
        k = None if k is None else self._split_heads(k)  # (B', H, S, d)
        v = None if v is None else self._split_heads(v)
        if incremental_state is not None:
            k, v, key_padding_mask = self._cached(
                k, v, key_padding_mask, incremental_state, static_kv
            )
        if self.add_zero_attn:
            k, v, key_padding_mask, attn_mask = self._append_zero_attn(
                k, v, key_padding_mask, attn_mask
            )
        sources, heads, _, head_dim = k.shape
        beams = batch // sources
        # (T, B', beams, H, d) → (B', H, beams, T, d) → (B', H, R, d)
        q = q.view(targets, sources, beams, heads, head_dim).permute(1, 3, 2, 0, 4)
        q = q.reshape(sources, heads, beams * targets, head_dim)
        mask, bias = self.stack.masks(key_padding_mask, attn_mask)
        query_padding = self.stack.query_padding

        def projected() -> tuple[Tensor, Tensor]:
            rows = (
                through_projection(out, x, linear.weight, linear.bias)
                for out, x, linear in ((q_rows, query, self.q_proj), (k_rows, key, self.k_proj))
            )
            return tuple(self._split_heads(x) for x in rows)

        context = AttentionContext(
            q=q,
            k=k,
            query_input=query,
            key_input=key,
            query_padding=query_padding if beams == 1 else None,
            attention_mask=mask,
            stack=self.stack,
            projected=projected if self._keys_are_projected(k, key, beams) else None,
        )
        weights_used = need_weights or need_head_weights or before_softmax
        if not weights_used and bias is None and self._can_fuse():
            out = attend_fused(context, v, self.attention_methods, self.scaling)  # (B', H, R, d)
            return self._join_heads(out, beams), None
        logits = product(q * self.scaling, k.transpose(2, 3))  # (B', H, R, S)
        if bias is not None:
            logits += bias
        if before_softmax:
            return context.mask(logits).flatten(0, 1), v.flatten(0, 1)
        weights = attend(logits, context, self.attention_methods)  # (B', H, R, S), fp32
        probs = self.dropout_module(weights.type_as(v))
        out = product(probs, v)  # (B', H, R, d)
        if self.head_hooks:
            self.call_head_hooks(HeadOutputs(weights, out, context.query_padding))
        out = self._join_heads(out, beams)
        if not (need_weights or need_head_weights):
            return out, None
        weights = weights.view(sources, heads, beams, targets, -1).permute(1, 0, 2, 3, 4)
        weights = weights.reshape(heads, batch, targets, -1)  # (H, B, T, S)
        return out, weights if need_head_weights else weights.mean(dim=0)

    def _keys_are_projected(self, k: Tensor, key: Tensor | None, beams: int) -> bool:
        """Whether all keys are W_K times an input: none is cached, a bias or 0."""
        return self.training and key is not None and k.size(2) == len(key) and beams == 1

    def _can_fuse(self) -> bool:
        """Whether a fused kernel may be used: no method, dropout or hook needs the weights.

        In evaluation the answer is no: fairseq does not fuse there, and because a fused kernel
        sums in another order, the outputs would differ slightly from fairseq's.
        """
        passive = all(method.passive for method in self.attention_methods.values())
        return self.training and self.dropout_module.p == 0 and passive and not self.head_hooks

    def _join_heads(self, out: Tensor, beams: int) -> Tensor:
        """Concatenate the heads and apply W_O: (B', H, R, d) → (T, B, C)."""
        sources, heads, rows, head_dim = out.shape
        out = out.reshape(sources, heads, beams, rows // beams, head_dim).permute(3, 0, 2, 1, 4)
        return self.out_proj(out.reshape(rows // beams, sources * beams, heads * head_dim))

    def _key_source(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: IncrementalState | None,
        static_kv: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The inputs of the projections W_K and W_V, and the padding mask of the keys.

        The inputs are None if keys and values are cached. In beam search, the repeated copies of a
        sentence are left out.
        """
        if self.self_attention:
            return query, query, key_padding_mask
        if not self.encoder_decoder_attention:
            return key, value, key_padding_mask
        if static_kv and "prev_key" in self._get_input_buffer(incremental_state):
            return None, None, key_padding_mask
        if key is not None and self.beam_size > 1 and key.size(1) == query.size(1):
            key = key[:, :: self.beam_size]
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[:: self.beam_size]
        return key, key, key_padding_mask

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split the last dimension into heads: (S, B, C) → (B, H, S, d)."""
        length, batch, _ = x.shape
        return x.view(length, batch, self.num_heads, -1).permute(1, 2, 0, 3)

    def _cached(
        self,
        k: Tensor | None,
        v: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: IncrementalState,
        static_kv: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append the keys and values of this step to the cached ones, (B, H, S, d)."""
        saved = self._get_input_buffer(incremental_state)
        if "prev_key" in saved:
            k = saved["prev_key"] if static_kv else append_keys(saved["prev_key"], k)
            v = saved["prev_value"] if static_kv else append_keys(saved["prev_value"], v)
        padding = self._append_prev_key_padding_mask(
            key_padding_mask=key_padding_mask,
            prev_key_padding_mask=saved.get("prev_key_padding_mask"),
            batch_size=k.size(0),
            src_len=k.size(2),
            static_kv=static_kv,
        )
        self._set_input_buffer(
            incremental_state, {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
        )
        return k, v, padding


def append_keys(cached: Tensor, new: Tensor) -> Tensor:
    """Concatenate keys or values (B, H, S, d) and (B, H, s, d) to (B, H, S + s, d)."""
    # Concatenating tensors with three axes is faster than with four.
    joined = torch.cat([cached.flatten(0, 1), new.flatten(0, 1)], dim=1)
    return joined.unflatten(0, cached.shape[:2])
