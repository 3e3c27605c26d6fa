"""Alignment attention inside models: gradients, padding, logged values, criterion, export."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import runner
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.losses import collecting_losses, take_losses
from fairseq_stochattn.criterions.attention_losses import AttentionLosses
from fairseq_stochattn.methods.alignment.attention import PENALTY_PERIOD, AlignmentAttention
from fairseq_stochattn.methods.alignment.distances import MATCHERS
from fairseq_stochattn.methods.alignment.transport import squared_mmd
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter
from precision import PRECISIONS

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
KINDS = pytest.mark.parametrize("kind", MATCHERS)


def losses(model: nn.Module, backbone: str, **batch: object) -> dict[str, list]:
    """The losses of all layers by name, after one forward pass."""
    with collecting_losses():
        zoo.run(model, backbone, SOURCES, TARGETS, **batch)
    found: dict[str, list] = {}
    for name, loss in take_losses(model):
        found.setdefault(name, []).append(loss)
    return found


@KINDS
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("backbone", ["transformer", "roberta", "transformer_lm"])
def test_both_projections_receive_a_gradient(backbone: str, kind: str, share: bool) -> None:
    flags = {"alignment": kind, "alignment_share_layers": share}
    model = zoo.build(f"{backbone}_alignment", **flags).train()
    zoo.run(model, backbone, SOURCES, TARGETS)
    found = list(take_losses(model))
    counts = Counter(name for name, _ in found)
    layers = 6 if backbone == "transformer" else 3  # self-attention only
    assert counts == {"align": layers, **({"align_penalty": layers} if kind == "gan" else {})}
    sum(loss.value for _, loss in found).backward()
    for name, parameter in model.named_parameters():
        if is_plugin_parameter(name) or name.endswith(
            ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
        ):
            assert parameter.grad is not None, name
            # A bias moves all points by the same vector, so its gradient may be 0.
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any() or name.endswith("bias"), name
    networks = {name for name, _ in model.named_parameters() if is_plugin_parameter(name)}
    assert all(("attention_stacks" in name) == share for name in networks)
    assert bool(networks) == (kind != "ot")


@KINDS
@pytest.mark.parametrize("backbone", ["transformer", "roberta", "transformer_lm"])
def test_losses_ignore_padding(backbone: str, kind: str) -> None:
    """The losses are the same with additional padding on either side."""
    flags = {"alignment": kind, "alignment_log_mmd": True}
    model = zoo.build(f"{backbone}_alignment", **flags).eval()
    found = [
        losses(model, backbone, width=width, left=left)
        for width, left in ((0, False), (20, False), (20, True))
    ]
    for other in found[1:]:
        for name in ("align", "mmd_sigma1"):
            for first, second in zip(found[0][name], other[name], strict=True):
                torch.testing.assert_close(first.value, second.value, rtol=1e-4, atol=1e-5)
                rows = len(SOURCES) - (name == "mmd_sigma1")  # the MMD needs at least two tokens
                assert first.count == second.count == rows * 2


def test_every_layer_adds_its_penalty_once_per_period() -> None:
    """Over one period of updates, each layer adds its penalty once, multiplied by the period."""
    model = zoo.build("transformer_alignment", alignment="gan").train()
    methods = [m for m in model.modules() if isinstance(m, AlignmentAttention)]
    computed: dict[int, list[Tensor]] = {}  # the penalties that each layer computed
    for method in methods:
        penalty, own = method.matcher.penalty, computed.setdefault(id(method), [])
        method.matcher.penalty = lambda *x, p=penalty, own=own: own.append(p(*x)) or own[-1]
    total, most = torch.zeros(len(methods)), 0
    for update in range(8, 8 + PENALTY_PERIOD):
        model.set_num_updates(update)
        found = torch.stack([x.value for x in losses(model, "transformer")["align_penalty"]])
        most = max(most, int(found.count_nonzero()))
        total += found.detach()
    assert all(len(own) == 1 for own in computed.values())
    expected = torch.stack([own[0] for own in computed.values()]).detach()
    torch.testing.assert_close(total, PENALTY_PERIOD * expected)
    assert most < len(methods)  # not all layers add their penalty in the same update


def test_queries_are_not_scaled() -> None:
    """The logged MMD is that of W_Q x and W_K x, without fairseq's factor 1/√d."""
    model = zoo.build("roberta_alignment", alignment_log_mmd=True).eval()
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    inputs: list[Tensor] = []
    attention.register_forward_pre_hook(
        lambda _, args, kwargs: inputs.append(kwargs["query"]), with_kwargs=True
    )
    found = losses(model, "roberta")["mmd_sigma1"][0]
    x = inputs[0].transpose(0, 1)  # (B, T, C)
    total = 0.0
    for row, sentence in enumerate(SOURCES):
        heads = [
            w(x[row, : len(sentence)]).view(1, -1, 2, 8).transpose(1, 2)
            for w in (attention.q_proj, attention.k_proj)
        ]
        mass = torch.full((1, 1, len(sentence)), 1 / len(sentence))
        total += squared_mmd(*heads, mass, mass).sum().item()
    assert found.value.item() == pytest.approx(total, rel=1e-4)


@KINDS
def test_outputs_equal_those_of_the_plain_model(kind: str) -> None:
    """They are equal in training and in eval mode. In eval mode no loss is stored."""
    plain = zoo.build("transformer")
    model = zoo.build("transformer_alignment", alignment=kind)
    model.load_state_dict(plain.state_dict())
    for mode in (True, False):
        found, expected = (
            zoo.run(m.train(mode), "transformer", SOURCES, TARGETS) for m in (model, plain)
        )
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert bool(list(take_losses(model))) == mode


def test_loss_is_the_mean_over_sentences_heads_and_layers() -> None:
    model = zoo.build("transformer_alignment", alignment_weight=0.3)
    terms = losses(model.eval(), "transformer")["align"]
    expected = sum(term.value for term in terms) / (6 * 2 * len(SOURCES))  # 3 + 3 layers, 2 heads
    with collecting_losses():
        zoo.run(model, "transformer", SOURCES, TARGETS)
    criterion, task_loss = AttentionLosses.__new__(AttentionLosses), torch.zeros(())
    loss, _, log = criterion.with_named_losses(model, task_loss, sample_size=7, log={})
    torch.testing.assert_close(log["attention/align"], 7 * expected.detach())
    torch.testing.assert_close(loss, 0.3 * 7 * expected)


def test_sentence_of_padding_only_is_not_counted() -> None:
    model = zoo.build("roberta_alignment", alignment_log_mmd=True).eval()
    alone = losses(model, "roberta")
    with collecting_losses():
        zoo.run(model, "roberta", [*SOURCES, torch.full((9,), zoo.PAD)], TARGETS)
    for name, loss in take_losses(model):
        same = alone[name].pop(0)
        torch.testing.assert_close(loss.value, same.value, rtol=1e-4, atol=1e-6)
        assert loss.count == same.count


CASES = {
    "gan": ("translation_data", ("--arch", "transformer_alignment", *sizes.TRANSFORMER)),
    "ot": ("lm_data", ("--arch", "transformer_lm_alignment", *sizes.TRANSFORMER_LM)),
    "ct": (
        "classification_data",
        (
            *("--arch", "roberta_alignment", *sizes.ROBERTA, "--task", "sentence_prediction"),
            *("--num-classes", 5, "--max-positions", 32),
        ),
    ),
}


@KINDS
def test_criterion_logs_objective_and_mmd(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """objective = task loss + w(t)·align; mmd_sigma1 is the mean of mmd_sigma1_<site>_<layer>."""
    fixture, flags = CASES[kind]
    schedule = ("--alignment-weight", 0.5, "--alignment-start", 1, "--alignment-warmup", 2)
    flags = (*flags, "--criterion", "alignment", "--alignment", kind, *schedule)
    more = ("--alignment-log-mmd", "--alignment-log-mmd-layers", "--dropout", 0, "--max-update", 5)
    data = request.getfixturevalue(fixture)
    output = runner.train(data, tmp_path, *flags, *more, "--no-save")
    rows = output.stats["train_inner"]
    assert [float(row["align_weight"]) for row in rows] == [0, 0, 0.25, 0.5, 0.5]
    for row in rows:
        terms = float(row["align"]) + float(row.get("align_penalty", 0))
        assert ("align_penalty" in row) == (kind == "gan")
        expected = float(row["loss"]) + float(row["align_weight"]) * terms / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=2e-3, abs=5e-3)
        by_layer = [float(value) for name, value in row.items() if name.startswith("mmd_sigma1_")]
        assert len(by_layer) == (4 if kind == "gan" else 2)
        assert float(row["mmd_sigma1"]) == pytest.approx(sum(by_layer) / len(by_layer), abs=2e-3)
    assert {"valid_align", "valid_mmd_sigma1", "valid_mmd"} <= set(output.stats["valid"][-1])


@pytest.mark.parametrize("criterion", ["elbo", "alignment"])
def test_alignment_works_together_with_babn(
    criterion: str, translation_data: Path, tmp_path: Path
) -> None:
    """The KL and the alignment loss keep their own weights with every criterion."""
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--alignment", "ct", "--dropout", 0)
    named = ("--criterion", criterion, "--alignment-weight", 0.2, "--max-update", 3)
    kl = ("--kl-weight", 0.01, "--kl-anneal-updates", 0)
    output = runner.train(translation_data, tmp_path, *flags, *named, *kl)
    for row in output.stats["train_inner"]:
        assert float(row["align_weight"]) == 0.2
        assert float(row["kl_weight"]) == 0.01
        extra = 0.2 * float(row["align"]) + float(row["kl_weight"]) * float(row["kl"])
        expected = float(row["loss"]) + extra / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=2e-3)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["model"]
    methods = {
        name.split("attention_methods.")[1].split(".")[0] for name in state if "methods" in name
    }
    assert methods == {"babn", "alignment"}


def test_fp16_training_matches_fp32(lm_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "transformer_lm_alignment", *sizes.TRANSFORMER_LM, "--dropout", 0)
    found = []
    for more in ((), (*PRECISIONS["fp16"], "--fp16-init-scale", 4)):
        named = ("--criterion", "alignment", "--max-update", 8)
        output = runner.train(lm_data, tmp_path / str(len(more)), *flags, *named, *more)
        found.append([float(row["align"]) for row in output.stats["train_inner"]])
        assert output.losses()[-1] < output.losses()[0]
    assert found[1] == pytest.approx(found[0], abs=0.02)


def test_a_plain_checkpoint_is_finetuned_and_exported_as_a_plain_checkpoint(
    lm_data: Path, tmp_path: Path
) -> None:
    """``stochattn-export`` removes the networks that fine-tuning added."""
    plain = ("--arch", "transformer_lm", *sizes.TRANSFORMER_LM, "--max-update", 2)
    runner.train(lm_data, tmp_path / "plain", *plain, user_dir=None)
    ours = ("--arch", "transformer_lm_alignment", *plain[2:], "--criterion", "alignment")
    start = ("--finetune-from-model", tmp_path / "plain" / "checkpoint_last.pt")
    runner.train(lm_data, tmp_path / "ours", *ours, *start, "--alignment-share-layers")
    trained, exported = tmp_path / "ours" / "checkpoint_last.pt", tmp_path / "exported.pt"
    result = runner.run("stochattn-export", trained, exported)
    assert result.returncode == 0, result.stderr[-2000:]
    before = compat.load_checkpoint(str(trained))["model"]
    after = compat.load_checkpoint(str(exported))["model"]
    assert any(is_plugin_parameter(name) for name in before)
    assert set(after) == {name for name in before if not is_plugin_parameter(name)}
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert "Perplexity" in runner.eval_lm(lm_data, exported).text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--attention", "alignment", "--alignment", "none"), "needs --alignment, for example ct"),
        (("--alignment", "ct", "--alignment-weight", -1), "--alignment-weight must not"),
        (("--alignment", "ot", "--alignment-ot-epsilon", 0), "--alignment-ot-epsilon must"),
        (("--criterion", "alignment"), "this model aligns nothing"),
    ],
)
def test_bad_flags_are_rejected(
    flags: tuple, message: str, translation_data: Path, tmp_path: Path
) -> None:
    arch = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--max-update", 1)
    if "--criterion" not in flags:
        arch = (*arch, "--criterion", "attention_losses")
    with pytest.raises(SystemExit, match=message):
        runner.train(translation_data, tmp_path, *arch, *flags)


def test_lstm_is_rejected_because_it_has_no_self_attention() -> None:
    with pytest.raises(UsageError, match="alignment acts on encoder, decoder attention"):
        zoo.build("lstm_deterministic", alignment="ct")
