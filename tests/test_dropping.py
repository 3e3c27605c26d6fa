"""The relatives of AttendOut: scheduled dropout of cells, and skipped attention layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import commands
import sizes
import zoo
from fairseq_stochattn.attention.cells import Cells, Hidden
from fairseq_stochattn.attention.schedules import parse_schedules
from fairseq_stochattn.attention.stack import AttentionStack
from fairseq_stochattn.errors import UsageError

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def method(name: str, layer: int = 0, **flags: object):
    """The method of one layer of a model in training."""
    model = zoo.build(f"roberta_{name}", **flags).train()
    layers = model.encoder.sentence_encoder.layers
    return layers[layer].self_attn.attention_methods[name]


def cells(like: Tensor) -> Cells:
    q = like.new_zeros(*like.shape[:3], 1)
    stack = AttentionStack("encoder", 1, like.size(1), 1)
    k = like.new_zeros(*like.shape[:2], like.size(3), 1)
    return Cells(q, k, q, q, None, Hidden(), stack)


def test_schedule_is_linear_between_its_points_and_constant_beyond() -> None:
    (schedule,) = parse_schedules("--cell-dropout", "100:0.6,200:0.2,400:0.3", num_layers=1)
    expected = {0: 0.6, 100: 0.6, 150: 0.4, 200: 0.2, 300: 0.25, 400: 0.3, 9000: 0.3}
    assert {t: schedule(t) for t in expected} == pytest.approx(expected)
    assert [p(7) for p in parse_schedules("--cell-dropout", "0.25", num_layers=3)] == [0.25] * 3
    each = parse_schedules("--cell-dropout", "0:0.6,10:0.5/0:0.6,10:0.1", num_layers=2)
    assert [p(5) for p in each] == pytest.approx([0.55, 0.35])


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("often", "is no probability"),
        ("0:0.5,200", "is no probability"),
        ("1.0", "at least 0 and below 1"),
        ("100:0.5,50:0.1", "do not increase"),
        ("0.1/0.2", "2 schedules for 3 layers"),
    ],
)
def test_bad_schedules(spec: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        zoo.build("roberta_cell_dropout", cell_dropout=spec)


def test_bad_layerdrop() -> None:
    with pytest.raises(UsageError, match="--attention-layerdrop must be between 0 and 1"):
        zoo.build("roberta_layerdrop", attention_layerdrop=1.5)


@pytest.mark.parametrize("per_head", [False, True])
def test_scores_are_dropped_with_the_probability_of_layer_and_update(per_head: bool) -> None:
    torch.manual_seed(0)
    spec = "0:0.6,100:0.6/0:0.6,100:0.2/0:0.6,100:0.1"
    logits = torch.randn(16, 2, 40, 40)
    for layer, expected in enumerate((0.6, 0.4, 0.35)):
        dropping = method("cell_dropout", layer, cell_dropout=spec, cell_dropout_per_head=per_head)
        dropping.set_num_updates(50)
        out = dropping(logits, cells(logits))
        gone = out != logits
        assert gone.float().mean() == pytest.approx(expected, abs=0.01)
        assert out.softmax(-1)[gone].max() == 0  # no row of 40 has lost all
        assert torch.equal(gone[:, 0], gone[:, 1]) != per_head


def test_weights_keep_their_expectation() -> None:
    torch.manual_seed(0)
    dropping = method("cell_dropout", cell_dropout="0.25", cell_dropout_on="weights")
    weights = torch.randn(1, 2, 3, 4).softmax(-1)
    assert dropping(weights, cells(weights)) is weights
    many = weights.expand(20000, 2, 3, 4)
    out = dropping.reweigh(many, cells(many))
    assert (out == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(out.mean(0), weights[0], rtol=0.03, atol=0.003)


def test_layers_are_skipped_as_often_as_asked_and_are_uniform_then() -> None:
    torch.manual_seed(0)
    dropping = method("layerdrop", attention_layerdrop=0.3)
    logits = torch.randn(2, 2, 3, 4)
    skipped = 0
    for _ in range(2000):
        out = dropping(logits, cells(logits))
        assert torch.equal(out, logits) or out.eq(0).all()
        skipped += bool(out.eq(0).all())
    assert skipped / 2000 == pytest.approx(0.3, abs=0.04)


def test_skipped_attention_still_has_gradients_for_every_parameter() -> None:
    model = zoo.build("roberta_layerdrop", attention_layerdrop=1.0).train()
    zoo.run(model, "roberta", SOURCES, TARGETS).square().mean().backward()
    projection = model.encoder.sentence_encoder.layers[0].self_attn.q_proj
    assert projection.weight.grad.eq(0).all()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", ["cell_dropout", "layerdrop"])
def test_at_test_time_it_is_plain_attention(name: str) -> None:
    flags = {"cell_dropout": "0.5"} if name == "cell_dropout" else {"attention_layerdrop": 0.5}
    plain, ours = zoo.build("roberta_deterministic"), zoo.build(f"roberta_{name}", **flags)
    found = [zoo.run(m.eval(), "roberta", SOURCES, TARGETS) for m in (plain, ours)]
    assert torch.equal(*found)


def test_their_flags_ask_for_them_on_top_of_any_method(
    translation_data: Path, tmp_path: Path
) -> None:
    flags = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--max-update", 2)
    flags = (*flags, "--cell-dropout", "0:0.5,10:0.1", "--attention-layerdrop", 0.2)
    output = commands.train(translation_data, tmp_path, *flags, "--checkpoint-activations")
    assert "(cell_dropout): CellDropout" in output.text
    assert "(layerdrop): AttentionLayerDrop" in output.text
    assert len(output.losses()) == 2
