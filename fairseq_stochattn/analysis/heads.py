"""What single heads do (An et al. 2020): Dist of §5.1 and the importance of heads of §5.2, Fig. 2.

Z_i = A_i V_i (Eq. 1) is the feature of head i. Every module that ``find_heads`` finds takes part:

- Multi-head attention, plain (after ``show_heads``) or ours: Z is what ``out_proj`` is applied to,
  and a head is masked by zeroing its columns of W_O.
- Any other module with ``num_heads`` and ``head_parameters()``: what it returns, alone or first of
  a tuple, is Z, (B, H, d) or (B, H·d), one feature a head and sentence. A head is masked by zeroing
  it there. Nothing more is asked of the module.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_stochattn.attention.watching import Heads, ShowsHeads, watching
from fairseq_stochattn.diversity import mean_distance
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.heads import HeadGroup
from fairseq_stochattn.models.hosts import host_methods

_PLAIN = Namespace(attention="deterministic", attention_sites="all", attention_layers="all")


def show_heads(model: nn.Module) -> nn.Module:
    """Give a plain model our attention without a method, in place; ours stays as it is.

    Plain fairseq computes its heads inside one call of torch, where their features are not seen.
    """
    for module in list(model.modules()):
        hosts = isinstance(module, (TransformerEncoderBase, TransformerDecoderBase))
        hosts = hosts or (isinstance(module, LSTMDecoder) and module.attention is not None)
        if hosts and not hasattr(module, "attention_stacks") and len(module.layers) > 0:
            host_methods([module], _PLAIN)
    return model


@contextmanager
def watched_heads(group: HeadGroup, record: Callable[[Tensor], None]) -> Iterator[None]:
    """Within, every forward calls ``record`` with Z, (N, H, d), of its N real tokens."""
    if isinstance(group.module, ShowsHeads):

        def see(heads: Heads) -> None:
            z = heads.outputs.transpose(1, 2)  # (B, T, H, d)
            record(z.flatten(0, 1) if heads.padding is None else z[~heads.padding])

        with watching([group.module], see):
            yield
        return
    if isinstance(group.module, MultiheadAttention):
        raise UsageError(
            f"the heads of {group.name} are not seen: "
            "its encoder or decoder is none of fairseq's Transformers"
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
    """Within, the output of one head is zero; afterwards the model is as it was, bit for bit."""
    if isinstance(group.module, MultiheadAttention):
        weight = group.module.out_proj.weight.detach()  # (C, H·d), shares the parameter's memory
        columns = weight.unflatten(1, (group.num_heads, -1))[:, head]
        kept = columns.clone()
        try:
            columns.zero_()
            yield
        finally:
            columns.copy_(kept)
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


def head_distances(
    groups: Sequence[HeadGroup], forward: Callable[[], object]
) -> list[float | None]:
    """Dist of every group over the real tokens that ``forward`` runs the model on.

    None where there is nothing to compare: a single head.
    """
    totals, tokens = [0.0] * len(groups), [0] * len(groups)

    def record_for(index: int) -> Callable[[Tensor], None]:
        def record(z: Tensor) -> None:
            totals[index] += mean_distance(z).double().sum().item()
            tokens[index] += len(z)

        return record

    with ExitStack() as watches:
        for index, group in enumerate(groups):
            if group.num_heads > 1:
                watches.enter_context(watched_heads(group, record_for(index)))
        forward()
    return [total / count if count else None for total, count in zip(totals, tokens, strict=True)]


def head_importances(
    groups: Sequence[HeadGroup],
    score: Callable[[], float],
    whole: float,
    progress: Callable[[list], Iterable] = iter,
) -> list[list[float]]:
    """For every head of every group what ``score``, ``whole`` with all heads, loses without it."""
    heads = [(index, head) for index, group in enumerate(groups) for head in range(group.num_heads)]
    losses: list[list[float]] = [[] for _ in groups]
    for index, head in progress(heads):
        with masked_head(groups[index], head):
            losses[index].append(whole - score())
    return losses
