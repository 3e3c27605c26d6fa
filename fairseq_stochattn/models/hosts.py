"""Hosts: fairseq's encoders and decoders, turned in place into ones that carry attention stacks.

A host tells its stacks when a new forward starts. Methods are overridden rather than hooked,
because the sequence generator calls ``decoder.forward`` directly and would pass forward hooks by.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from typing import Any

from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from torch import Tensor, nn

from fairseq_stochattn import compat
from fairseq_stochattn.attention.method import METHODS, chain_of
from fairseq_stochattn.attention.multihead import StochasticMultiheadAttention
from fairseq_stochattn.attention.recurrent import StochasticAttentionLayer
from fairseq_stochattn.attention.stack import build_stacks
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.embeddings import RicherEmbedding


def attention_layers(owner: nn.Module) -> list[nn.Module]:
    """All layers with attention: under LayerDrop, plain iteration would leave some out."""
    return [layer for layer in owner.layers.children() if hasattr(layer, "self_attn")]


class EncoderHost(RicherEmbedding):
    """Transformer encoder: self-attention of one batch of source tokens."""

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.attention_stacks["encoder"].begin(src_tokens, self.padding_idx)
        return super().forward(src_tokens, *args, **kwargs)

    def attentions(self) -> dict[str, list[nn.Module]]:
        layers = attention_layers(self)
        compat.use_own_attention_in_eval(layers)
        return {"encoder": [StochasticMultiheadAttention.adopt(x.self_attn) for x in layers]}


class DecoderHost:
    """Transformer decoder: causal self-attention, and cross-attention where there is an encoder."""

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        for stack in self.attention_stacks.values():
            stack.begin(prev_output_tokens, self.padding_idx, incremental_state is not None)
        return super().extract_features(
            prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
        )

    def attentions(self) -> dict[str, list[nn.Module]]:
        layers = attention_layers(self)
        found = {"decoder": [StochasticMultiheadAttention.adopt(x.self_attn) for x in layers]}
        crossing = [x.encoder_attn for x in layers if x.encoder_attn is not None]
        if crossing:
            found["cross"] = [StochasticMultiheadAttention.adopt(x) for x in crossing]
        return found


class RecurrentHost:
    """LSTM decoder: one attention over the source, asked once a target token."""

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Any = None
    ) -> Any:
        for stack in self.attention_stacks.values():
            pad = self.embed_tokens.padding_idx
            stack.begin(prev_output_tokens, pad, incremental_state is not None)
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state)

    def attentions(self) -> dict[str, list[nn.Module]]:
        if self.attention is None:
            raise UsageError("--decoder-attention False leaves no attention to work on")
        return {"cross": [StochasticAttentionLayer.adopt(self.attention)]}


_HOSTS = {
    TransformerEncoderBase: EncoderHost,
    TransformerDecoderBase: DecoderHost,
    LSTMDecoder: RecurrentHost,
}


@cache
def _hosting_class(plain: type) -> type:
    host = next(host for base, host in _HOSTS.items() if issubclass(plain, base))
    return type(f"Stochastic{plain.__name__}", (host, plain), {"__module__": __name__})


def host_methods(owners: Sequence[nn.Module], config: Namespace) -> None:
    """Give fairseq's encoders and decoders our attention with the methods of ``config``."""
    found = []
    for owner in owners:
        _refuse_impossible(owner, config)
        owner.__class__ = _hosting_class(type(owner))
        found.append(owner.attentions())
    owned = list(zip(owners, found, strict=True))
    stacks = build_stacks(
        config,
        {site: modules for _, sites in owned for site, modules in sites.items()},
        {site: owner.dictionary for owner, sites in owned for site in sites},
    )
    for owner, sites in owned:
        owner.attention_stacks = nn.ModuleDict({site: stacks[site] for site in sites})


def _refuse_impossible(owner: nn.Module, config: Namespace) -> None:
    layers = owner.layers.children() if hasattr(owner, "layers") else ()
    if any(type(layer).__name__ == "FullyShardedDataParallel" for layer in layers):
        raise UsageError(
            "--ddp-backend fully_sharded hides the attention's parameters; "
            "use --ddp-backend pytorch_ddp or legacy_ddp"
        )
    if getattr(config, "checkpoint_activations", False):
        for name in chain_of(config):
            if not METHODS[name].stateless:
                raise UsageError(
                    f"--checkpoint-activations runs every layer twice, which {name} attention "
                    "does not survive; leave the flag out (or use --update-freq to save memory)"
                )
