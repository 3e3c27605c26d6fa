"""Computes the meters of a trained model: does its attention method do what it exists for?

The meters are defined in methods/*/meter*.py and explained in docs/meters.md. Those of the heads
and of the keys and queries are also computed for plain models, so that runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..core.divergences import categorical_kl
from ..core.graph_attention import GraphAttention
from ..core.head_hooks import HasHeadHooks
from ..core.heads import HeadGroup, find_heads
from ..core.losses import collecting_losses, pool_layers, take_losses
from ..core.paired_batch import map_rows, paired_batch
from ..methods.alignment.meter import CloudMeters, cloud_meters
from ..methods.asa.meter import divergence_ratio, mask_meters
from ..methods.attendout.meter import harm_correlation
from ..methods.repulsive.meter import feature_meters, feature_sums, head_cosine, systems_of
from ..tasks.questions import Question
from .answering import ELEMENTS
from .heads import recorded_heads, show_heads
from .loading import Batches

EXAMPLES = 128  # measured examples, evenly spread over the lengths of the data
BATCH_SIZE = 16


@torch.no_grad()
def measure(
    model: nn.Module, question: Question, batches: Batches, max_tokens: int, seed: int = 1
) -> dict[str, float]:
    """The meters of a model in eval mode, by name, measured on some examples of ``batches``.

    The attention of a plain fairseq model is replaced in place by this package's, which has the
    same outputs (``show_heads``). ``max_tokens`` bounds the size of a forward pass.
    """
    cuda = next(model.parameters()).is_cuda
    chosen = [utils.move_to_cuda(x) if cuda else x for x in some_batches(batches, max_tokens)]
    chosen = [batch for batch in chosen if question.predicted_positions(batch).any()]
    utils.set_torch_seed(seed)
    found = measure_layers(show_heads(model), question, chosen)
    masks = [mask_meters(model, partial(divergence, question, model, batch)) for batch in chosen]
    if masks and masks[0] is not None:
        masked, random = (sum(x) for x in zip(*((m.masked, m.random) for m in masks), strict=True))
        found["divergence_ratio"] = divergence_ratio(masked, random).item()
        found["masked_share"] = fmean(m.masked_share.item() for m in masks)
    middle = chosen[len(chosen) // 2] if chosen else None
    if middle is not None and question.target(middle) is not None:
        harm = harm_correlation(model, partial(loss_by_example, question, model, middle))
        if harm is not None:
            found["harm_correlation"] = harm.item()
    return found


def some_batches(batches: Batches, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Small batches of at most ``EXAMPLES`` examples, evenly spread over those of ``batches``."""
    indices = np.concatenate(list(batches.parts))
    places = np.linspace(0, len(indices) - 1, min(EXAMPLES, len(indices))).round().astype(int)
    chosen = indices[places]
    longest = max(int(batches.dataset.num_tokens(int(index))) for index in chosen)
    size = max(1, min(BATCH_SIZE, max_tokens // max(1, longest)))
    parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    yield from replace(batches, parts=parts)


def measure_layers(
    model: nn.Module, question: Question, batches: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """The meters that need one forward pass per batch: those of noise, keys, queries and heads."""
    groups = find_heads(model)
    heads = [group for group in groups if group.num_heads > 1 and _shows_heads(group)]
    clouds = [group for group in groups if _has_clouds(group)]
    features = {group.name: 0.0 for group in heads}
    points: dict[str, list[tuple[CloudMeters, Tensor]]] = {group.name: [] for group in clouds}
    noise: list[tuple[Tensor, Tensor]] = []

    def record(name: str, z: Tensor) -> None:
        features[name] = features[name] + feature_sums(z)

    with ExitStack() as hooks:
        for group in heads:
            hooks.enter_context(recorded_heads(group, partial(record, group.name)))
        for group in clouds:
            _hook_clouds(group, points[group.name].append, hooks)
        for batch in batches:
            with collecting_losses():
                question.features(model, batch)
                losses = dict(pool_layers(take_losses(model)))
            if "noise" in losses:
                noise.append((losses["noise"].value, losses["noise"].count))
    found: dict[str, float] = {}
    if noise:
        found["noise"] = (sum(x for x, _ in noise) / sum(n for _, n in noise)).item()
    found |= _cloud_means(clouds, points)
    cosine = head_cosine(systems_of(groups))
    if cosine is not None:
        found["head_cosine"] = cosine.item()
    measured = [feature_meters(x)._asdict() for x in features.values() if isinstance(x, Tensor)]
    for name in measured[0] if measured else ():
        found[name] = fmean(meters[name].item() for meters in measured)
    return found


def _shows_heads(group: HeadGroup) -> bool:
    """Whether the outputs of the heads can be read."""
    return isinstance(group.module, HasHeadHooks) or not isinstance(
        group.module, MultiheadAttention
    )


def _has_clouds(group: HeadGroup) -> bool:
    """Whether the module is self-attention whose projected keys and queries can be read."""
    module = group.module
    if isinstance(module, GraphAttention):
        return True
    return isinstance(module, MultiheadAttention) and module.self_attention and _shows_heads(group)


def _hook_clouds(
    group: HeadGroup, store: Callable[[tuple[CloudMeters, Tensor]], None], hooks: ExitStack
) -> None:
    """Store the meters of keys and queries in every forward pass, until ``hooks`` is closed."""
    if isinstance(group.module, GraphAttention):

        def after_layer(layer: GraphAttention, given: tuple, _: Tensor) -> None:
            q, k = (x.transpose(0, 1)[None] for x in layer.queries_and_keys(given[0]))
            store(cloud_meters(q, k, None))

        hooks.callback(group.module.register_forward_hook(after_layer).remove)
        return
    last: dict[str, Tensor] = {}  # the queries, until the keys of the same batch are computed

    def by_head(projected: Tensor) -> Tensor:
        """(T, B, C) → (B, H, T, d)."""
        return projected.unflatten(2, (group.num_heads, -1)).permute(1, 2, 0, 3)

    def after_q(_: nn.Module, __: object, out: Tensor) -> None:
        last["q"] = by_head(out)

    def after_k(_: nn.Module, __: object, out: Tensor) -> None:
        store(cloud_meters(last.pop("q"), by_head(out), group.module.stack.query_padding))

    for module, hook in ((group.module.q_proj, after_q), (group.module.k_proj, after_k)):
        hooks.callback(module.register_forward_hook(hook).remove)


def _cloud_means(
    groups: Sequence[HeadGroup], points: dict[str, list[tuple[CloudMeters, Tensor]]]
) -> dict[str, float]:
    """The meters of keys and queries, averaged over batches and layers.

    If the model has self-attention in encoder and decoder, the result also has the means of each:
    ``mmd_encoder``, ``mmd_decoder`` and so on.
    """
    by_site: dict[str, list[CloudMeters]] = {}
    for group in groups:
        counts = sum(count for _, count in points[group.name])
        if counts > 0:
            sums = [sum(x) for x in zip(*(m for m, _ in points[group.name]), strict=True)]
            by_site.setdefault(group.site, []).append(CloudMeters(*(x / counts for x in sums)))
    named = {"": [x for layers in by_site.values() for x in layers]}
    if len(by_site) > 1:
        named |= {f"_{site}": layers for site, layers in by_site.items()}
    return {
        f"{name}{suffix}": fmean(getattr(x, name).item() for x in layers)
        for suffix, layers in named.items()
        for name in (CloudMeters._fields if layers else ())
    }


def divergence(question: Question, model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """The KL between the predictions without and with masks, summed over a batch, a scalar."""
    inputs = {name: x for name, x in batch.items() if name.startswith("net_input")}
    double = map_rows(inputs, lambda x: torch.cat([x, x]), size=len(batch["id"]))
    with paired_batch():
        features = question.features(model, double)
    predicted = question.predicted_positions(batch)
    clean, adversarial = (x[predicted] for x in features.chunk(2))  # (n, d)
    total = features.new_zeros((), dtype=torch.float32)
    for part in _slices(question, model, clean):
        pair = (question.log_probs(model, x[None, part]) for x in (clean, adversarial))
        total = total + categorical_kl(*pair).sum()
    return total


def loss_by_example(question: Question, model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """The negative log-likelihood of the targets of each example, (B,), in nats."""
    predicted = question.predicted_positions(batch)
    features = question.features(model, batch)[predicted]  # (n, d)
    target = question.target(batch)[predicted].to(features.device)
    losses = torch.cat(
        [
            -question.log_probs(model, features[None, part])[0]
            .gather(-1, target[part, None])
            .squeeze(-1)
            for part in _slices(question, model, features)
        ]
    )
    counts = predicted.view(len(predicted), -1).sum(dim=1).to(features.device)
    example = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    return losses.new_zeros(len(counts)).index_add(0, example, losses)


def _slices(question: Question, model: nn.Module, features: Tensor) -> list[slice]:
    """Slices of the n positions, so short that the probabilities of all classes fit into memory."""
    classes = question.log_probs(model, features[None, :1]).size(-1)
    size = max(1, ELEMENTS // classes)
    return [slice(start, start + size) for start in range(0, len(features), size)]
