"""Segment embeddings: which token is in which sentence, and where the embedding is added."""

from __future__ import annotations

import torch

import zoo
from fairseq_stochattn.models.embeddings import segments_of

SEP, PAD = zoo.EOS, zoo.PAD


def test_segments_change_behind_the_first_separator() -> None:
    rows = [
        [0, 5, 6, SEP, 7, SEP],  # a pair
        [0, 5, 6, 7, 8, SEP],  # one sentence
        [0, 5, SEP, 7, 8, 9],  # a pair, its end cut off
        [0, 5, SEP, 7, SEP, PAD],
        [0, SEP, 5, SEP, 6, SEP],  # running text
    ]
    found = segments_of(torch.tensor(rows), SEP, number=2)
    expected = [
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 2],
        [0, 0, 0, 0, 0, 0],
    ]
    assert found.tolist() == [[min(1, x) for x in row] for row in expected]
    assert segments_of(torch.tensor(rows), SEP, number=3).tolist() == expected


def test_the_embedding_is_added_before_the_layer_norm() -> None:
    tokens = torch.tensor([[0, 5, 6, SEP, 7, SEP]])
    model = zoo.build("roberta_deterministic", segment_embeddings=2).eval()
    encoder = model.encoder.sentence_encoder
    x, _ = encoder.forward_embedding(tokens)
    segments = encoder.embed_segments.weight[torch.tensor([[0, 0, 0, 0, 1, 1]])]
    total = encoder.embed_tokens(tokens) + encoder.embed_positions(tokens) + segments
    torch.testing.assert_close(x, encoder.layernorm_embedding(total))
    plain = zoo.build("roberta_deterministic").encoder.sentence_encoder
    assert not hasattr(plain, "embed_segments")
