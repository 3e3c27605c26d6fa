"""The one multi-head attention forward: training, eval, incremental decoding, beam search.

fairseq's ``MultiheadAttention`` with its parameters, initialisation and caches, and a forward in
which methods stand between QKᵀ and softmax. Shapes: T queries, S keys, B sentences, H heads,
d = C/H; during beam search with un-repeated keys one source has several queries, which are simply
more rows, R = beams · T.
"""

from __future__ import annotations

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_stochattn.attention.cells import Cells, Hidden, Remembered, behind_padding, opened
from fairseq_stochattn.attention.method import MethodDict, attend, attend_fused
from fairseq_stochattn.attention.stack import AttentionStack
from fairseq_stochattn.attention.watching import Heads, ShowsHeads
from fairseq_stochattn.errors import UsageError

IncrementalState = dict[str, dict[str, Tensor | None]]

# fairseq writes "never look there" into float masks as −inf, −1e8 or (fp16 encoders) −1e4.
_NEVER = -1e4


class StochasticMultiheadAttention(ShowsHeads, MultiheadAttention):
    """Multi-head attention whose logits pass through ``attention_methods`` before the softmax."""

    stack: AttentionStack
    attention_methods: MethodDict
    hidden: Remembered[Tensor | None, Hidden]

    @classmethod
    def adopt(cls, attention: MultiheadAttention) -> StochasticMultiheadAttention:
        """Turn a plain attention into ours, in place.

        The class is changed instead of the module rebuilt: parameters, their random
        initialisation, checkpoint names and wrappers around the layer stay fairseq's own.
        """
        if getattr(attention, "use_xformers", False):
            raise UsageError(
                "--encoder/decoder-xformers-att-config cannot be combined with our attention: "
                "xFormers never shows the logits; leave the flag out"
            )
        attention.__class__ = cls
        attention.hidden = Remembered(behind_padding)
        return attention  # type: ignore[return-value]

    def sizes(self) -> dict[str, int]:
        return {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "query_dim": self.embed_dim,
            "key_dim": self.kdim,
        }

    def forward(
        self,
        query: Tensor,  # (T, B, C)
        key: Tensor | None,  # (S, B or B/beams, C_k)
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,  # (B or B/beams, S)
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,  # (T, S)
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        targets, batch, _ = query.shape
        key, value, key_padding_mask = self._key_source(
            query, key, value, key_padding_mask, incremental_state, static_kv
        )
        q = self.q_proj(query)  # (T, B, C)
        k = None if key is None else self.k_proj(key)  # (S, B', C)
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
        if attn_mask is None:
            hidden, bias = self.hidden(key_padding_mask), None
        else:
            hidden, bias = behind_masks(key_padding_mask, attn_mask)
        query_padding = self.stack.query_padding
        cells = Cells(
            q=q,
            k=k,
            query_input=query,
            key_input=key,
            query_padding=query_padding if beams == 1 else None,
            hidden=hidden,
            stack=self.stack,
        )
        asked = need_weights or need_head_weights or before_softmax
        if not asked and bias is None and self._fuses():
            out = attend_fused(cells, v, self.attention_methods, self.scaling)  # (B', H, R, d)
            return self._join_heads(out, beams), None
        logits = product(q * self.scaling, k.transpose(2, 3))  # (B', H, R, S)
        if bias is not None:
            logits += bias
        if before_softmax:
            return cells.mask(logits).flatten(0, 1), v.flatten(0, 1)
        weights = attend(logits, cells, self.attention_methods)  # (B', H, R, S), fp32
        probs = self.dropout_module(weights.type_as(v))
        out = product(probs, v)  # (B', H, R, d)
        if self.watchers:
            self.show(Heads(weights, out, cells.query_padding))
        out = self._join_heads(out, beams)
        if not (need_weights or need_head_weights):
            return out, None
        weights = weights.view(sources, heads, beams, targets, -1).permute(1, 0, 2, 3, 4)
        weights = weights.reshape(heads, batch, targets, -1)  # (H, B, T, S)
        return out, weights if need_head_weights else weights.mean(dim=0)

    def _fuses(self) -> bool:
        """Whether nobody needs the logits or the weights, so that they are never stored.

        In training only, where fairseq does so too; in eval it sums in another order.
        """
        passive = all(method.passive for method in self.attention_methods.values())
        return self.training and self.dropout_module.p == 0 and passive and not self.watchers

    def _join_heads(self, out: Tensor, beams: int) -> Tensor:
        """(B', H, R, d) → (T, B, C), through W_O."""
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
        """What W_K and W_V are applied to: nothing if cached, one copy a source in beam search."""
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
        """(S, B, C) → (B, H, S, d)."""
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
        """Keys and values of this step behind those of the steps before, (B, H, S, d)."""
        saved = self._get_input_buffer(incremental_state)
        if "prev_key" in saved:
            k = saved["prev_key"] if static_kv else appended(saved["prev_key"], k)
            v = saved["prev_value"] if static_kv else appended(saved["prev_value"], v)
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


def behind_masks(
    key_padding_mask: Tensor | None, attn_mask: Tensor
) -> tuple[Hidden, Tensor | None]:
    """What both hide, and the finite part of ``attn_mask`` (T, S)."""
    bias, never = None, attn_mask.bool()
    if attn_mask.is_floating_point():
        never = attn_mask <= _NEVER
        bias = attn_mask.masked_fill(never, 0.0)
    padding, blocked = None, never
    if key_padding_mask is not None:
        padding = key_padding_mask.bool()
        blocked = padding[:, None, None, :] | never
    return Hidden(padding, opened(blocked.view(-1, 1, *never.shape[-2:]))), bias


# Both of these are up to a third faster with three axes than torch's own way with four, which shows
# in decoding, where they are many and small.
def product(a: Tensor, b: Tensor) -> Tensor:
    """(B, H, m, n) · (B, H, n, p) → (B, H, m, p)."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def appended(before: Tensor, now: Tensor) -> Tensor:
    """Keys or values (B, H, S, d), and behind them (B, H, s, d)."""
    joined = torch.cat([before.flatten(0, 1), now.flatten(0, 1)], dim=1)
    return joined.unflatten(0, before.shape[:2])
