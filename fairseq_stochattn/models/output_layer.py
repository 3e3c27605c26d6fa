"""Output layers of decoders that return the loss over the vocabulary instead of the logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from ..core.vocabulary_loss import VocabularyLoss, can_fuse, vocabulary_loss


@dataclass
class LossRequest:
    """The targets of one forward pass, and the loss once it is computed."""

    targets: Tensor  # (B, T)
    padding_idx: int
    smoothing: float
    result: VocabularyLoss | None = None


class LossOutputLayer:
    """Mixin for decoders: while ``loss_request`` is set, ``output_layer`` returns the loss.

    The loss is computed within the model's forward pass, so wrappers such as
    DistributedDataParallel see all parameters at work. Without a request, or with an output layer
    of another kind or precision, the logits are returned as usual.
    """

    loss_request: LossRequest | None = None

    def output_layer(self, features: Tensor) -> Tensor:
        """Features (B, T, C) → logits (B, T, V), or the loss, a scalar."""
        request, projection = self.loss_request, self.projection()
        if request is None or projection is None or features.shape[:-1] != request.targets.shape:
            return super().output_layer(features)
        weight, bias = projection
        if not can_fuse(features, weight):
            return super().output_layer(features)
        request.result = vocabulary_loss(
            features, weight, bias, request.targets, request.padding_idx, request.smoothing
        )
        return request.result.loss

    def projection(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of the output layer; None if it is not one plain linear map."""
        if self.adaptive_softmax is not None:
            return None
        if getattr(self, "share_input_output_embed", False) and hasattr(self, "hidden_size"):
            return self.embed_tokens.weight, None  # an LSTM, which has no output module then
        layer = getattr(self, "output_projection", None) or getattr(self, "fc_out", None)
        if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
            return None
        return layer.weight, layer.bias


@contextmanager
def requesting_loss(decoder: LossOutputLayer, request: LossRequest) -> Iterator[None]:
    """Within the block, forward passes of ``decoder`` compute the requested loss if they can."""
    decoder.loss_request = request
    try:
        yield
    finally:
        decoder.loss_request = None
