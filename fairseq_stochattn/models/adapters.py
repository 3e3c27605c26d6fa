"""Adapters: mixins that put attention methods into fairseq's encoders and decoders, in place.

The attention modules of one site (encoder self-attention, decoder self-attention or
cross-attention) form a stack. At the start of every forward pass, an adapter passes the tokens to
its stacks. An adapter overrides methods of the encoder or decoder instead of adding forward hooks,
because fairseq's sequence generator calls ``decoder.forward`` directly, which skips hooks.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from torch import Tensor, nn

from .. import compat
from ..compat import UsageError
from ..core.graph_network import GraphEncoder
from ..core.method import METHODS
from ..core.pruning import KeptLayers
from ..core.stack import Vocabulary, build_stacks
from .embeddings import SegmentEmbedding
from .graph_text_adapters import GraphTextDecoderAdapter, GraphTextEncoderAdapter
from .graph_text_decoder import GraphTextDecoder
from .graph_text_encoder import GraphTextEncoder
from .lstm_attention import StochasticAttentionLayer
from .mcan_layers import ImageDecoder, QuestionEncoder
from .method_flags import SELECTION_FLAGS, chain_from, method_names
from .multihead_attention import StochasticMultiheadAttention
from .output_layer import LossOutputLayer
from .pruning import part_of


def attention_layers(owner: nn.Module) -> list[nn.Module]:
    """All layers of an encoder or decoder that have self-attention.

    ``children`` is used because a loop over ``owner.layers`` skips random layers under LayerDrop.
    """
    return [layer for layer in owner.layers.children() if hasattr(layer, "self_attn")]


class EncoderAdapter(SegmentEmbedding):
    """Adapter for Transformer encoders, which have self-attention over the source tokens."""

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.attention_stacks["encoder"].begin(src_tokens, self.padding_idx)
        return super().forward(src_tokens, *args, **kwargs)

    def attentions(self) -> dict[str, list[nn.Module]]:
        """Convert the attention modules in place and return them by site."""
        layers = attention_layers(self)
        compat.use_own_attention_in_eval(layers)
        return {"encoder": [StochasticMultiheadAttention.adopt(x.self_attn) for x in layers]}


class DecoderAdapter(LossOutputLayer):
    """Adapter for Transformer decoders.

    They have causal self-attention, and cross-attention if the model has an encoder.
    """

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
        """Convert the attention modules in place and return them by site."""
        layers = attention_layers(self)
        found = {"decoder": [StochasticMultiheadAttention.adopt(x.self_attn) for x in layers]}
        cross_attentions = [x.encoder_attn for x in layers if x.encoder_attn is not None]
        if cross_attentions:
            found["cross"] = [StochasticMultiheadAttention.adopt(x) for x in cross_attentions]
        return found


class ImageAdapter(DecoderAdapter):
    """Adapter for MCAN's layers over image regions, which attend to each other and to words."""

    def forward(self, regions: Tensor, padding: Tensor, *args: Any) -> Tensor:
        for stack in self.attention_stacks.values():
            stack.begin_without_tokens(padding)
        return super().forward(regions, padding, *args)


class RecurrentAdapter(LossOutputLayer):
    """Adapter for LSTM decoders, whose only attention is called once per target token."""

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Any = None
    ) -> Any:
        for stack in self.attention_stacks.values():
            pad = self.embed_tokens.padding_idx
            stack.begin(prev_output_tokens, pad, incremental_state is not None)
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state)

    def attentions(self) -> dict[str, list[nn.Module]]:
        """Convert the attention module in place and return it by site."""
        if self.attention is None:
            raise UsageError("--decoder-attention False leaves no attention for a method")
        return {"cross": [StochasticAttentionLayer.adopt(self.attention)]}


class GraphAdapter:
    """Adapter for graph attention networks, whose nodes attend to their neighbours."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.attention_stacks["encoder"].clear()
        return super().forward(*args, **kwargs)

    def attentions(self) -> dict[str, list[nn.Module]]:
        """Return the attention modules by site; they need no conversion."""
        return {"encoder": list(self.layers)}


_ADAPTERS = {
    GraphEncoder: GraphAdapter,
    QuestionEncoder: EncoderAdapter,
    ImageDecoder: ImageAdapter,
    GraphTextDecoder: GraphTextDecoderAdapter,
    GraphTextEncoder: GraphTextEncoderAdapter,
    TransformerEncoderBase: EncoderAdapter,
    TransformerDecoderBase: DecoderAdapter,
    LSTMDecoder: RecurrentAdapter,
}


@cache
def _adapted_class(plain: type) -> type:
    """Create the subclass of an encoder or decoder class that has its adapter as first base."""
    adapter = next(adapter for base, adapter in _ADAPTERS.items() if issubclass(plain, base))
    return type(f"Stochastic{plain.__name__}", (adapter, plain), {"__module__": __name__})


def install_methods(
    owners: Sequence[nn.Module], config: Namespace, kept: Mapping[str, KeptLayers] | None = None
) -> None:
    """Install attention methods in fairseq's encoders and decoders ``owners``, in place.

    ``config`` selects the methods, and the sites and layers where they act. ``kept`` are the layers
    of a pruned encoder or decoder ("encoder", "decoder").
    """
    found = []
    for owner in owners:
        _refuse_impossible(owner, config)
        owner.__class__ = _adapted_class(type(owner))
        found.append(owner.attentions())
    owned = list(zip(owners, found, strict=True))
    with compat.exit_on_bad_input():
        stacks = build_stacks(
            chain_from(config),
            {site: modules for _, sites in owned for site, modules in sites.items()},
            config.attention_sites,
            config.attention_layers,
            {site: vocabulary_of(owner) for owner, sites in owned for site in sites},
            SELECTION_FLAGS,
            {site: (kept or {}).get(part_of(owner)) for owner, sites in owned for site in sites},
        )
    for owner, sites in owned:
        owner.attention_stacks = nn.ModuleDict({site: stacks[site] for site in sites})


def vocabulary_of(owner: nn.Module) -> Vocabulary | None:
    """The vocabulary size and padding id of an encoder or decoder; None of graphs and images."""
    if hasattr(owner, "vocabulary"):
        return owner.vocabulary()
    if not hasattr(owner, "dictionary"):
        return None
    return Vocabulary(len(owner.dictionary), owner.dictionary.pad())


def _refuse_impossible(owner: nn.Module, config: Namespace) -> None:
    """Exit if one of fairseq's flags cannot be combined with attention methods."""
    layers = list(owner.layers.children()) if hasattr(owner, "layers") else ()
    if layers == []:
        part = part_of(owner)
        raise UsageError(f"the {part} has no layers: --{part}-layers must be positive")
    if any(type(layer).__name__ == "FullyShardedDataParallel" for layer in layers):
        raise UsageError(
            "--ddp-backend fully_sharded hides the attention's parameters; "
            "use --ddp-backend pytorch_ddp or legacy_ddp"
        )
    if getattr(config, "checkpoint_activations", False):
        for name in method_names(config):
            if not METHODS[name].stateless:
                raise UsageError(
                    f"--checkpoint-activations runs every layer twice, which {name} attention "
                    "does not support; leave the flag out (or use --update-freq to save memory)"
                )
