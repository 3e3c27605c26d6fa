"""Parts of BERT that RoBERTa lacks: segments, LayerNorm's ε, a pooler that initialises heads."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.models.embeddings import segments_of

SEP, PAD = zoo.EOS, zoo.PAD


def test_segments_change_after_the_first_separator() -> None:
    rows = [
        [0, 5, 6, SEP, 7, SEP],  # a pair
        [0, 5, 6, 7, 8, SEP],  # one sentence
        [0, 5, SEP, 7, 8, 9],  # a pair whose end was truncated
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


def test_segment_embedding_is_added_before_the_layer_norm() -> None:
    tokens = torch.tensor([[0, 5, 6, SEP, 7, SEP]])
    model = zoo.build("roberta_deterministic", segment_embeddings=2).eval()
    encoder = model.encoder.sentence_encoder
    x, _ = encoder.forward_embedding(tokens)
    segments = encoder.embed_segments.weight[torch.tensor([[0, 0, 0, 0, 1, 1]])]
    total = encoder.embed_tokens(tokens) + encoder.embed_positions(tokens) + segments
    torch.testing.assert_close(x, encoder.layernorm_embedding(total))
    plain = zoo.build("roberta_deterministic").encoder.sentence_encoder
    assert not hasattr(plain, "embed_segments")


def test_epsilon_is_set_in_every_layer_norm() -> None:
    norms = [m for m in zoo.build("roberta_toy").modules() if isinstance(m, nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-5}
    model = zoo.build("roberta_toy", layer_norm_eps=1e-12)
    found = [m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert found == [1e-12] * len(norms)
    with pytest.raises(UsageError, match="--layer-norm-eps must be positive"):
        zoo.build("roberta_toy", layer_norm_eps=0.0)


def with_pooler(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with a random pooler, in the format of stochattn-import."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(5)
    for name, shape in (("dense.weight", (16, 16)), ("dense.bias", (16,))):
        value = torch.randn(shape, generator=generator)
        state[f"classification_heads.pooler.{name}"] = value
    state["classification_heads.pooler.out_proj.weight"] = torch.zeros(0, 16)
    state["classification_heads.pooler.out_proj.bias"] = torch.zeros(0)
    return state


def test_new_heads_start_from_the_pooler(caplog: pytest.LogCaptureFixture) -> None:
    state = with_pooler(zoo.build("roberta_deterministic"))
    pooler = state["classification_heads.pooler.dense.weight"]
    model = zoo.build("roberta_deterministic", seed=2)
    for name, classes, width in (("two", 2, 16), ("three", 3, 16), ("narrow", 2, 8)):
        model.register_classification_head(name, classes, width)
    fresh = model.classification_heads["narrow"].dense.weight.clone()
    with caplog.at_level(logging.INFO):
        model.load_state_dict(dict(state))
    for name in ("two", "three"):
        assert torch.equal(model.classification_heads[name].dense.weight, pooler)
        assert f"the head {name} starts from the checkpoint's pooler" in caplog.text
    assert torch.equal(model.classification_heads["narrow"].dense.weight, fresh)
    assert "the head narrow" not in caplog.text


def test_a_trained_head_keeps_its_own_weights() -> None:
    """A head of the checkpoint is not replaced by the pooler, even if its name is "pooler"."""
    trained, model = (zoo.build("roberta_deterministic", seed=n) for n in (1, 2))
    for head in ("two", "pooler"):
        for each in (trained, model):
            each.register_classification_head(head, 2)
        pooler = with_pooler(trained) if head == "two" else {}
        model.load_state_dict({**pooler, **trained.state_dict()})
        for name, value in trained.classification_heads.state_dict().items():
            assert torch.equal(model.classification_heads.state_dict()[name], value)


def test_plain_fairseq_ignores_the_pooler() -> None:
    state = with_pooler(zoo.build("roberta_deterministic"))
    model = zoo.build("roberta", seed=2)
    model.load_state_dict(dict(state))
    assert torch.equal(model.encoder.lm_head.bias, state["encoder.lm_head.bias"])
