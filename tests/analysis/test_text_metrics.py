"""Measures of generated texts, compared with cases computed by hand."""

from __future__ import annotations

import math

import pytest

from fairseq_stochattn.analysis.text_metrics import (
    Generated,
    bleu,
    coverage,
    longest_common_subsequence,
    meteor,
    rouge_l,
    rouge_n,
    text_metrics,
)
from fairseq_stochattn.core.graph_text_file import GraphText


def test_bleu_by_hand() -> None:
    # 5 of 6 words, 3 of 5 pairs, 1 of 4 triples; equal lengths, so no brevity penalty.
    rows = [Generated("the cat sat on a mat", ["the cat sat on the mat"], [])]
    precisions = [5 / 6, 3 / 5, 2 / 4, 1 / 3]
    for order in (1, 2, 3, 4):
        wanted = 100 * math.prod(precisions[:order]) ** (1 / order)
        assert bleu(rows, order) == pytest.approx(wanted)


def test_bleu_with_different_numbers_of_references() -> None:
    # 2 + 2 words are right; the shorter text pays exp(1 − 6/4) for the closest references.
    rows = [Generated("a b", ["a b c", "x y z w"], []), Generated("c d", ["c d e"], [])]
    assert bleu(rows, 1) == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_rouge_by_hand() -> None:
    assert rouge_n("a b c", ["a c d e"], 1) == pytest.approx(2 * 2 / (3 + 4))
    assert rouge_n("a b a", ["a b b a b"], 2) == pytest.approx(2 * 2 / (2 + 4))
    assert rouge_l("a b c d", ["a c b d x"]) == pytest.approx(2 * 3 / (4 + 5))
    assert rouge_l("a", ["b", "a"]) == 1.0  # the best reference
    assert rouge_n("", ["a"], 1) == rouge_l("", ["a"]) == 0.0
    assert longest_common_subsequence("abcbdab", "bdcaba") == 4


def test_meteor_by_hand() -> None:
    """Banerjee and Lavie 2005: F = 10PR / (R + 9P), penalty 0.5·(chunks / matches)³."""
    pytest.importorskip("nltk")
    # "the cat" and "mat": 3 matches in 2 chunks; P = 3/4, R = 3/3.
    f = 10 * (3 / 4) * 1 / (1 + 9 * 3 / 4)
    wanted = f * (1 - 0.5 * (2 / 3) ** 3)
    assert meteor("the cat big mat", ["the cat mat"]) == pytest.approx(wanted)
    # Equal stems match, synonyms do not.
    assert meteor("dogs", ["dog"]) == pytest.approx(0.5)
    assert meteor("hound", ["dog"]) == 0


def test_coverage_counts_whole_names() -> None:
    rows = [
        Generated("new york is big", ["x"], ["new york", "york", "ork", "paris"]),
        Generated("", ["x"], ["rome"]),
        Generated("no entity", ["x"], []),
    ]
    assert coverage(rows) == pytest.approx(100 * 2 / 5)


def test_a_perfect_text_has_perfect_scores() -> None:
    rows = [Generated("a b c d e f g h", ["a b c d e f g h"], ["b c"])] * 2
    found = text_metrics(rows)
    found.pop("meteor", None)  # 99.9: its penalty never vanishes
    assert found == pytest.approx(dict.fromkeys(found, 100.0))


def test_symbols_become_names_of_the_same_graph() -> None:
    graph = GraphText(["new york", "paris"], ["<a>", "<a>"], [], "", [])
    assert (
        graph.fill("<entity_1> , not <entity_0> nor <entity_7> .") == "paris , not new york nor ."
    )
