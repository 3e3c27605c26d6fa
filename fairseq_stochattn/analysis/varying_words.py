"""Finds the words whose attention weight varies over samples when a model makes a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from .sentences import build_sentence
from .weights import find_attention, sample_weights

WordsAt = Callable[[dict[str, Any], int], list[dict[str, Any]]]


def varying_words(task: Any, model: nn.Module, remove_bpe: str | None, samples: int) -> WordsAt:
    """Return a function of a batch with one example and the position of a prediction.

    The function returns the words that the prediction attends to, in their order: ``word``,
    ``weight`` (the mean over samples), ``spread`` (the standard deviation over samples), and
    ``varies``: whether the spread is unusually large in this text. The weights are those of the
    cross-attention, or of the self-attention in models without it, averaged over all heads and
    layers. ``model`` must have random attention. ``remove_bpe`` joins subwords as in
    fairseq-generate.
    """
    groups = find_attention(model)
    sites = [group.site for group in groups]
    site = "cross" if "cross" in sites else sites[0]
    groups = [group for group in groups if group.site == site]

    def words_at(batch: dict[str, Any], position: int) -> list[dict[str, Any]]:
        sentence = build_sentence(task, model, "", batch["net_input"], batch.get("target"))
        drawn = sample_weights(model, sentence, groups, samples)
        layers = [layer.weights[:, :, position].mean(dim=1) for layer in drawn]  # each (K, S)
        weights = torch.stack(layers).mean(dim=0)
        words, owners = join_subwords(task.source_dictionary, sentence.tokens(site)[1], remove_bpe)
        totals = weights.new_zeros(len(weights), len(words))
        for token, word in enumerate(owners):
            if word is not None:
                totals[:, word] += weights[:, token]
        spreads = totals.std(dim=0) if len(totals) > 1 else torch.zeros_like(totals[0])
        columns = (totals.mean(dim=0).tolist(), spreads.tolist(), large(spreads).tolist())
        return [
            {"word": word, "weight": weight, "spread": spread, "varies": varies}
            for word, weight, spread, varies in zip(words, *columns, strict=True)
        ]

    return words_at


def large(spreads: Tensor) -> Tensor:
    """True where a spread exceeds the mean of all (N,) by more than their standard deviation."""
    return spreads > spreads.mean() + spreads.std(correction=0)


def join_subwords(
    symbols: Dictionary, tokens: Sequence[str], remove_bpe: str | None
) -> tuple[list[str], list[int | None]]:
    """Return the words of a text, and for each token the index of its word.

    The index is None for tokens without text, such as eos. A token starts a new word if the text up
    to this token has one word more than the text before it.
    """
    ids = torch.tensor([symbols.index(token) for token in tokens])
    prefixes = [symbols.string(ids[:end], remove_bpe).split() for end in range(1, len(ids) + 1)]
    silent = [not symbols.string(ids[n : n + 1]).strip() for n in range(len(ids))]
    owners = [
        None if empty or not words else len(words) - 1
        for empty, words in zip(silent, prefixes, strict=True)
    ]
    return (prefixes[-1] if prefixes else []), owners
