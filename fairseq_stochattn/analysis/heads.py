"""Distance between heads (Dist; An et al. 2020, §5.1) and importance of heads (§5.2, Fig. 2).

Z_i = A_i V_i (Eq. 1) is the output of head i: the attention weights A_i times the values V_i. Dist
is the mean of ‖Z_i − Z_j‖ over all pairs of heads. The importance of a head is the drop of a score
when the head is masked. All modules that ``find_heads`` returns are measured:

- Multi-head attention: Z is the input of ``out_proj``. A head is masked by setting its columns of
  the weight W_O of ``out_proj`` to zero. Models of plain fairseq need ``show_heads`` first.
- Any other module with ``num_heads`` and ``head_parameters()``: Z is the output of the module, or
  the first element if the output is a tuple. Z has the shape (B, H, d) or (B, H·d) and holds one
  vector per head and sentence.
  A head is masked by setting its part of the output to zero.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.head_hooks import HasHeadHooks, HeadOutputs, hook_heads
from ..core.heads import HeadGroup
from ..methods.repulsive.meter import feature_meters, feature_sums, head_cosine, systems_of
from ..models.adapters import install_methods
from ..models.mcan_layers import ImageDecoder, QuestionEncoder

_TRANSFORMERS = (TransformerEncoderBase, TransformerDecoderBase, QuestionEncoder, ImageDecoder)
_PLAIN = Namespace(attention="deterministic", attention_sites="all", attention_layers="all")


def show_heads(model: nn.Module) -> nn.Module:
    """Replace, in place, the attention of a plain fairseq model by this package's attention.

    The new attention has no method, so the model's output stays the same. It makes the outputs of
    the heads readable: plain fairseq computes all heads in one call of torch, which does not return
    them. Models that already have this package's attention are not changed.
    """
    for module in list(model.modules()):
        supported = isinstance(module, _TRANSFORMERS)
        supported = supported or (isinstance(module, LSTMDecoder) and module.attention is not None)
        if supported and not hasattr(module, "attention_stacks") and len(module.layers) > 0:
            install_methods([module], _PLAIN)
    return model


@contextmanager
def recorded_heads(group: HeadGroup, record: Callable[[Tensor], None]) -> Iterator[None]:
    """Within the block, every forward pass calls ``record`` with the head outputs Z (N, H, d).

    N is the number of non-padding tokens in the batch, or of sentences if Z has one vector per
    sentence.
    """
    if isinstance(group.module, HasHeadHooks):

        def record_tokens(heads: HeadOutputs) -> None:
            z = heads.outputs.transpose(1, 2)  # (B, T, H, d)
            record(z.flatten(0, 1) if heads.padding is None else z[~heads.padding])

        with hook_heads([group.module], record_tokens):
            yield
        return
    if isinstance(group.module, MultiheadAttention):
        raise InputError(
            f"the heads of {group.name} cannot be measured: "
            "its encoder or decoder is not one of fairseq's Transformers"
        )

    def after_forward(_: nn.Module, args: Any, output: Any) -> None:
        z = output[0] if isinstance(output, tuple) else output
        record(z.reshape(z.size(0), group.num_heads, -1))

    handle = group.module.register_forward_hook(after_forward)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def masked_head(group: HeadGroup, head: int) -> Iterator[None]:
    """Within the block, the output of one head is zero. Afterwards, it is restored bit for bit."""
    if isinstance(group.module, MultiheadAttention):
        weight = group.module.out_proj.weight.detach()  # (C, H·d), shares the parameter's memory
        columns = weight.unflatten(1, (group.num_heads, -1))[:, head]
        original = columns.clone()
        try:
            columns.zero_()
            yield
        finally:
            columns.copy_(original)
        return

    def mask(_: nn.Module, args: Any, output: Any) -> Any:
        z = output[0] if isinstance(output, tuple) else output
        masked = z.reshape(z.size(0), group.num_heads, -1).clone()
        masked[:, head] = 0
        masked = masked.view_as(z)
        return (masked, *output[1:]) if isinstance(output, tuple) else masked

    handle = group.module.register_forward_hook(mask)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class HeadDiversityMeasures:
    """How different the heads of one attention module are; None if it has a single head."""

    dist: float | None = None  # the mean of ‖Z_i − Z_j‖ over all pairs of heads and all tokens
    dist_over_norm: float | None = None  # Dist over the mean of ‖Z_i‖
    feature_cosine: float | None = None  # the mean cosine of Z_i and Z_j
    head_cosine: float | None = None  # the mean cosine of the weights of two heads


def head_diversities(
    groups: Sequence[HeadGroup], forward: Callable[[], object]
) -> list[HeadDiversityMeasures]:
    """The diversity of the heads of every group.

    ``forward`` runs the model on the data; only non-padding tokens are measured.
    """
    totals = [torch.zeros(4, dtype=torch.double) for _ in groups]

    def record_for(index: int) -> Callable[[Tensor], None]:
        def record(z: Tensor) -> None:
            totals[index] += feature_sums(z.double()).cpu()

        return record

    with ExitStack() as hooks:
        for index, group in enumerate(groups):
            if group.num_heads > 1:
                hooks.enter_context(recorded_heads(group, record_for(index)))
        forward()
    return [_measures(group, sums) for group, sums in zip(groups, totals, strict=True)]


def _measures(group: HeadGroup, sums: Tensor) -> HeadDiversityMeasures:
    if not sums[3]:
        return HeadDiversityMeasures()
    meters, cosine = feature_meters(sums), head_cosine(systems_of([group]))
    return HeadDiversityMeasures(
        dist=(sums[1] / sums[3]).item(),
        dist_over_norm=meters.dist_over_norm.item(),
        feature_cosine=meters.feature_cosine.item(),
        head_cosine=None if cosine is None else cosine.item(),
    )


def head_distances(
    groups: Sequence[HeadGroup], forward: Callable[[], object]
) -> list[float | None]:
    """Dist of every group (``head_diversities``); None for groups with a single head."""
    return [measures.dist for measures in head_diversities(groups, forward)]


def head_importances(
    groups: Sequence[HeadGroup],
    score: Callable[[], float],
    whole: float,
    progress: Callable[[list], Iterable] = iter,
) -> list[list[float]]:
    """The drop of ``score()`` when a head is masked, for every head of every group.

    ``whole`` is the score with all heads. ``progress`` wraps the loop over heads, as ``tqdm`` does.
    """
    heads = [(index, head) for index, group in enumerate(groups) for head in range(group.num_heads)]
    drops: list[list[float]] = [[] for _ in groups]
    for index, head in progress(heads):
        with masked_head(groups[index], head):
            drops[index].append(whole - score())
    return drops
