"""Levi graphs as attention masks, and masks per sentence in the attention function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.context import mask_from_both
from fairseq_stochattn.core.levi_graph import blocked_pairs, join_nodes


def test_a_graph_by_hand() -> None:
    """Entities a and b with (a, r, b); the second graph has one entity and no triple."""
    entity_padding = torch.tensor([[False, False], [False, True]])
    relation_padding = torch.tensor([[False], [True]])
    heads, tails = torch.tensor([[0], [1]]), torch.tensor([[1], [1]])
    seen = ~blocked_pairs(entity_padding, relation_padding, heads, tails)
    # Rows and columns: global node, a, b, r, inverse of r. A row sees its columns.
    first = [
        [1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1],
        [1, 0, 1, 1, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 1, 0, 1],
    ]
    second = torch.eye(5, dtype=torch.long)
    second[0, 1] = second[1, 0] = 1
    assert seen[0].long().tolist() == first
    assert seen[1].long().tolist() == second.tolist()
    padding = join_nodes(entity_padding, relation_padding)
    assert padding.tolist() == [[False] * 5, [False, False, True, True, True]]


def attention() -> nn.Module:
    return zoo.build("transformer_deterministic").eval().encoder.layers[0].self_attn


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_per_sentence_equals_one_mask_at_a_time(kind: str) -> None:
    torch.manual_seed(0)
    layer, x = attention(), torch.randn(6, 3, 16)
    blocked = torch.rand(3, 6, 6) < 0.5
    blocked[:, torch.arange(6), torch.arange(6)] = False
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True

    def as_given(mask: Tensor) -> Tensor:
        return mask if kind == "bool" else torch.zeros(mask.shape).masked_fill(mask, -1e8)

    layer.stack.begin(torch.full((3, 6), 7), zoo.PAD)
    together = layer(x, x, x, key_padding_mask=padding, attn_mask=as_given(blocked))[0]
    for row in range(3):
        layer.stack.begin(torch.full((1, 6), 7), zoo.PAD)
        one = x[:, row : row + 1]
        alone = layer(one, one, one, padding[row : row + 1], attn_mask=as_given(blocked[row]))[0]
        torch.testing.assert_close(together[:, row : row + 1], alone, rtol=0, atol=1e-6)


def test_finite_values_of_a_mask_per_sentence_are_a_bias() -> None:
    mask, bias = mask_from_both(None, torch.tensor([[[0.5, -1e8]], [[0.0, 2.0]]]))
    assert bias.tolist() == [[[[0.5, 0.0]]], [[[0.0, 2.0]]]]
    assert mask.blocked.tolist() == [[[[False, True]]], [[[False, False]]]]
