"""Words whose attention varies over samples: subwords are joined, numbers are direct ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

import zoo
from fairseq_stochattn.analysis.report_evaluation import marks_of
from fairseq_stochattn.analysis.sentences import build_sentence
from fairseq_stochattn.analysis.varying_words import join_subwords, large, varying_words
from fairseq_stochattn.analysis.weights import find_attention, sample_weights


def batch_of(source: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    net_input = {
        "src_tokens": source[None],
        "src_lengths": torch.tensor([len(source)]),
        "prev_output_tokens": target.roll(1)[None],
    }
    return {"net_input": net_input, "target": target[None]}


@pytest.mark.parametrize(
    ("kind", "tokens", "words", "owners"),
    [
        ("subword_nmt", ["un@@", "known", "word", "</s>"], ["unknown", "word"], [0, 0, 1, None]),
        ("sentencepiece", ["▁un", "known", "▁word", "."], ["unknown", "word."], [0, 0, 1, 1]),
        (None, ["two", "words", "</s>"], ["two", "words"], [0, 1, None]),
        (None, ["</s>"], [], [None]),
    ],
)
def test_subwords_are_joined_to_words(kind, tokens, words, owners) -> None:
    symbols = Dictionary()
    for token in tokens:
        symbols.add_symbol(token)
    assert join_subwords(symbols, tokens, kind) == (words, owners)


@pytest.mark.parametrize("arch", ["transformer_babn", "lstm_babn", "roberta_bam"])
def test_weights_and_spreads_are_those_of_the_samples(arch: str) -> None:
    """Averaged over heads and layers of the cross-attention, for one target position."""
    model, task = zoo.build(arch).eval(), zoo.task()
    (source,), (target,) = zoo.sentences(6), zoo.sentences(4, seed=1)
    batch = batch_of(source, target)
    if arch.startswith("roberta"):
        del batch["net_input"]["prev_output_tokens"], batch["target"]
    torch.manual_seed(3)
    found = varying_words(task, model, None, samples=5)(batch, 2)
    groups = find_attention(model)
    groups = [group for group in groups if group.site in (groups[-1].site, "cross")]
    torch.manual_seed(3)
    sentence = build_sentence(task, model, "", batch["net_input"], batch.get("target"))
    drawn = sample_weights(model, sentence, groups, 5)
    weights = sum(layer.weights.mean(dim=1)[:, 2] for layer in drawn) / len(drawn)  # (K, S)
    assert [row["word"] for row in found] == [task.source_dictionary[x] for x in source[:-1]]
    assert [row["weight"] for row in found] == pytest.approx(weights.mean(0)[:-1].tolist())
    assert [row["spread"] for row in found] == pytest.approx(weights.std(0)[:-1].tolist())
    assert max(row["spread"] for row in found) > 1e-3


def test_attention_without_noise_does_not_vary() -> None:
    (source,), (target,) = zoo.sentences(6), zoo.sentences(4, seed=1)
    spreads = []
    for k in (1.0, 1e4):
        model = zoo.build("transformer_bam", bam_k=k).eval()
        rows = varying_words(zoo.task(), model, None, 8)(batch_of(source, target), 1)
        spreads.append(max(row["spread"] for row in rows))
    assert spreads[0] > 0.01
    assert spreads[1] < 1e-4


def test_words_with_unusual_spread_are_marked() -> None:
    assert large(torch.tensor([1.0, 2.0, 4.0, 3.0])).tolist() == [False, False, True, False]
    assert not large(torch.tensor([0.0])).any()
    assert not large(torch.ones(5)).any()
    words = [{"word": "a", "varies": False}, {"word": "b", "varies": True}]
    assert marks_of({"words": words}) == [("a", False), ("b", True)]
    assert marks_of({}) == []
