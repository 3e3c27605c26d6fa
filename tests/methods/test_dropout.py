"""cell_dropout (scheduled dropout of (query, key) pairs) and layerdrop (skipped attention)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import runner
import sizes
import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.context import AttentionContext, AttentionMask
from fairseq_stochattn.core.schedule import parse_schedules
from fairseq_stochattn.core.stack import AttentionStack

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def method(name: str, layer: int = 0, **flags: object):
    """The method of one layer of a model in training mode."""
    model = zoo.build(f"roberta_{name}", **flags).train()
    layers = model.encoder.sentence_encoder.layers
    return layers[layer].self_attn.attention_methods[name]


def context_of(like: Tensor) -> AttentionContext:
    """A context without masks for logits or weights (B, H, T, S)."""
    q = like.new_zeros(*like.shape[:3], 1)
    stack = AttentionStack("encoder", 1, like.size(1), 1)
    k = like.new_zeros(*like.shape[:2], like.size(3), 1)
    return AttentionContext(q, k, q, q, None, AttentionMask(), stack)


def test_schedule_is_linear_between_points_and_constant_outside() -> None:
    (schedule,) = parse_schedules("100:0.6,200:0.2,400:0.3", num_layers=1)
    expected = {0: 0.6, 100: 0.6, 150: 0.4, 200: 0.2, 300: 0.25, 400: 0.3, 9000: 0.3}
    assert {t: schedule(t) for t in expected} == pytest.approx(expected)
    assert [p(7) for p in parse_schedules("0.25", num_layers=3)] == [0.25] * 3
    each = parse_schedules("0:0.6,10:0.5/0:0.6,10:0.1", num_layers=2)
    assert [p(5) for p in each] == pytest.approx([0.55, 0.35])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("often", "is not a schedule: give a probability"),
        ("0:0.5,200", "is not a schedule: give a probability"),
        ("1.0", "at least 0 and below 1"),
        ("100:0.5,50:0.1", "the updates of .* must increase"),
        ("0.1/0.2", "2 schedules for 3 layers"),
    ],
)
def test_bad_schedules_are_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--cell-dropout .*{message}"):
        zoo.build("roberta_cell_dropout", cell_dropout=spec)


def test_bad_layerdrop_is_refused() -> None:
    with pytest.raises(UsageError, match="--attention-layerdrop must be between 0 and 1"):
        zoo.build("roberta_layerdrop", attention_layerdrop=1.5)


@pytest.mark.parametrize("per_head", [False, True])
def test_scores_are_dropped_with_the_scheduled_probability(per_head: bool) -> None:
    torch.manual_seed(0)
    spec = "0:0.6,100:0.6/0:0.6,100:0.2/0:0.6,100:0.1"
    logits = torch.randn(16, 2, 40, 40)
    for layer, expected in enumerate((0.6, 0.4, 0.35)):
        dropping = method("cell_dropout", layer, cell_dropout=spec, cell_dropout_per_head=per_head)
        dropping.set_num_updates(50)
        out = dropping(logits, context_of(logits))
        dropped = out != logits
        assert dropped.float().mean() == pytest.approx(expected, abs=0.01)
        assert out.softmax(-1)[dropped].max() == 0  # no row of 40 keys is fully dropped
        assert torch.equal(dropped[:, 0], dropped[:, 1]) != per_head


def test_weights_keep_their_expectation() -> None:
    torch.manual_seed(0)
    dropping = method("cell_dropout", cell_dropout="0.25", cell_dropout_on="weights")
    weights = torch.randn(1, 2, 3, 4).softmax(-1)
    assert dropping(weights, context_of(weights)) is weights
    many = weights.expand(20000, 2, 3, 4)
    out = dropping.reweigh(many, context_of(many))
    assert (out == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(out.mean(0), weights[0], rtol=0.03, atol=0.003)


def test_layers_are_skipped_with_their_probability_and_are_uniform_then() -> None:
    torch.manual_seed(0)
    dropping = method("layerdrop", attention_layerdrop=0.3)
    logits = torch.randn(2, 2, 3, 4)
    skipped = 0
    for _ in range(2000):
        out = dropping(logits, context_of(logits))
        assert torch.equal(out, logits) or out.eq(0).all()
        skipped += bool(out.eq(0).all())
    assert skipped / 2000 == pytest.approx(0.3, abs=0.04)


def test_every_parameter_of_a_skipped_layer_has_a_gradient() -> None:
    model = zoo.build("roberta_layerdrop", attention_layerdrop=1.0).train()
    zoo.run(model, "roberta", SOURCES, TARGETS).square().mean().backward()
    projection = model.encoder.sentence_encoder.layers[0].self_attn.q_proj
    assert projection.weight.grad.eq(0).all()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", ["cell_dropout", "layerdrop"])
def test_attention_is_plain_at_test_time(name: str) -> None:
    flags = {"cell_dropout": "0.5"} if name == "cell_dropout" else {"attention_layerdrop": 0.5}
    plain, ours = zoo.build("roberta_deterministic"), zoo.build(f"roberta_{name}", **flags)
    found = [zoo.run(m.eval(), "roberta", SOURCES, TARGETS) for m in (plain, ours)]
    assert torch.equal(*found)


def test_flags_add_them_to_any_method(translation_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--max-update", 2)
    flags = (*flags, "--cell-dropout", "0:0.5,10:0.1", "--attention-layerdrop", 0.2)
    output = runner.train(translation_data, tmp_path, *flags, "--checkpoint-activations")
    assert "(cell_dropout): CellDropoutAttention" in output.text
    assert "(layerdrop): LayerDropAttention" in output.text
    assert len(output.losses()) == 2
