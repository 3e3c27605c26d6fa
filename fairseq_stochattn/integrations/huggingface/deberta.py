"""DeBERTa's disentangled attention, which does not use transformers' attention interface.

The class of a module is changed in place, as in ``integrations/torch_attention.py``. The part of
the logits that depends on relative positions comes from the module's own methods.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from torch import Tensor, nn

from ...core.attention import product
from ...core.errors import InputError
from .interface import attend_in_module


class _Disentangled:
    """Forward pass of both DeBERTas; a subclass projects and adds the relative positions."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As that of transformers: the output (B, T, C), and the weights (B, H, T, S) or None."""
        queries = hidden_states if query_states is None else query_states
        q, k, v = self.projected(queries, hidden_states)  # (B, H, T|S, d)
        factor = 1 + len(self.pos_att_type)
        scale = math.sqrt(q.size(3) * factor)
        logits = product(q / scale, k.transpose(2, 3))  # (B, H, T, S)
        if self.relative_attention and rel_embeddings is not None:
            rel_embeddings = self.pos_dropout(rel_embeddings)
            logits = logits + self.position_logits(q, k, relative_pos, rel_embeddings, factor)
        out, weights = attend_in_module(self, logits, (q, k, v), attention_mask, self.dropout.p)
        return out.flatten(2), weights if output_attentions else None


class _First(_Disentangled):
    """DeBERTa: one matrix of projections, in which the rows of a head are q, k, v."""

    def projected(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.transpose_for_scores(self.in_proj(keys)).chunk(3, dim=-1)
        q = q + self.transpose_for_scores(self.q_bias[None, None, :])
        return q, k, v + self.transpose_for_scores(self.v_bias[None, None, :])

    def position_logits(
        self, q: Tensor, k: Tensor, relative_pos: Tensor, embeddings: Tensor, factor: int
    ) -> Tensor:
        scaled = q / math.sqrt(q.size(3) * factor)
        return self.disentangled_att_bias(scaled, k, relative_pos, embeddings, factor)


class _Second(_Disentangled):
    """DeBERTa-v2 and v3: three projections; heads are part of the batch axis."""

    def projected(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        inputs = ((self.query_proj, queries), (self.key_proj, keys), (self.value_proj, keys))
        heads = self.num_attention_heads
        return tuple(project(x).unflatten(2, (heads, -1)).transpose(1, 2) for project, x in inputs)

    def position_logits(
        self, q: Tensor, k: Tensor, relative_pos: Tensor, embeddings: Tensor, factor: int
    ) -> Tensor:
        rows = (q.flatten(0, 1), k.flatten(0, 1))  # (B·H, T, d)
        bias = self.disentangled_attention_bias(*rows, relative_pos, embeddings, factor)
        return bias.view(*q.shape[:3], k.size(2))


@cache
def _adapted_class(plain: type) -> type:
    adapter = _Second if hasattr(plain, "disentangled_attention_bias") else _First
    return type(f"Stochastic{plain.__name__}", (adapter, plain), {"plain_class": plain})


def adopt(module: nn.Module) -> None:
    """Replace the forward pass of a module of DeBERTa by ours, in place."""
    if getattr(module, "head_logits_proj", None) is not None:
        raise InputError("DeBERTa with talking heads mixes the logits of heads: cannot convert it")
    module.__class__ = _adapted_class(type(module))


def release(module: Any) -> None:
    """Undo ``adopt``."""
    module.__class__ = module.plain_class
