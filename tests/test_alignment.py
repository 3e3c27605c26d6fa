"""Alignment attention in models: who gets gradient, what counts, what is logged and exported."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import commands
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.attention.alignment import PENALTY_PERIOD, AlignmentAttention
from fairseq_stochattn.attention.matching import MATCHERS
from fairseq_stochattn.attention.method import collect_losses, collecting_losses
from fairseq_stochattn.criterions.attention_losses import AttentionLosses
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import is_ours
from fairseq_stochattn.transport import squared_mmd
from test_precision import PRECISIONS

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
KINDS = pytest.mark.parametrize("kind", MATCHERS)


def losses(model: nn.Module, backbone: str, **batch: object) -> dict[str, list]:
    with collecting_losses():
        zoo.run(model, backbone, SOURCES, TARGETS, **batch)
    found: dict[str, list] = {}
    for name, loss in collect_losses(model):
        found.setdefault(name, []).append(loss)
    return found


@KINDS
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("backbone", ["transformer", "roberta", "transformer_lm"])
def test_both_projections_get_gradient(backbone: str, kind: str, share: bool) -> None:
    flags = {"alignment": kind, "alignment_share_layers": share}
    model = zoo.build(f"{backbone}_alignment", **flags).train()
    zoo.run(model, backbone, SOURCES, TARGETS)
    left = list(collect_losses(model))
    expected = Counter(name for name, _ in left)
    layers = 6 if backbone == "transformer" else 3  # self-attention alone
    assert expected == {"align": layers, **({"align_penalty": layers} if kind == "gan" else {})}
    sum(loss.value for _, loss in left).backward()
    for name, parameter in model.named_parameters():
        if is_ours(name) or name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight")):
            assert parameter.grad is not None, name
            # All of a critic's points may move alike, and τ's length does not matter to a cosine.
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any() or name.endswith("bias"), name
    networks = {name for name, _ in model.named_parameters() if is_ours(name)}
    assert all(("attention_stacks" in name) == share for name in networks)
    assert bool(networks) == (kind != "ot")


@KINDS
@pytest.mark.parametrize("backbone", ["transformer", "roberta", "transformer_lm"])
def test_padding_does_not_count(backbone: str, kind: str) -> None:
    """The losses are the same with columns of padding, on either side."""
    flags = {"alignment": kind, "alignment_log_mmd": True}
    model = zoo.build(f"{backbone}_alignment", **flags).eval()
    found = [
        losses(model, backbone, width=width, left=left)
        for width, left in ((0, False), (20, False), (20, True))
    ]
    for other in found[1:]:
        for name in ("align", "mmd"):
            for first, second in zip(found[0][name], other[name], strict=True):
                torch.testing.assert_close(first.value, second.value, rtol=1e-4, atol=1e-5)
                rows = len(SOURCES) - (name == "mmd")  # one token alone has no pair
                assert first.count == second.count == rows * 2


def test_every_layer_pays_for_its_slope_in_its_turn() -> None:
    """Once in so many updates, for all of them: over a round each has paid what it owes."""
    model = zoo.build("transformer_alignment", alignment="gan").train()
    methods = [m for m in model.modules() if isinstance(m, AlignmentAttention)]
    owed: dict[int, list[float]] = {}
    for method in methods:
        penalty, known = method.matcher.penalty, owed.setdefault(id(method), [])
        method.matcher.penalty = lambda *x, p=penalty, known=known: known.append(p(*x)) or known[-1]
    paid, most = torch.zeros(len(methods)), 0
    for update in range(8, 8 + PENALTY_PERIOD):
        model.set_num_updates(update)
        found = torch.stack([x.value for x in losses(model, "transformer")["align_penalty"]])
        most = max(most, int(found.count_nonzero()))
        paid += found.detach()
    assert all(len(known) == 1 for known in owed.values())
    expected = torch.stack([known[0] for known in owed.values()]).detach()
    torch.testing.assert_close(paid, PENALTY_PERIOD * expected)
    assert most < len(methods)  # not all at once


def test_the_queries_are_unscaled() -> None:
    """The measured MMD is that of W_Q x and W_K x, without fairseq's 1/√d."""
    model = zoo.build("roberta_alignment", alignment_log_mmd=True).eval()
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    inputs: list[Tensor] = []
    attention.register_forward_pre_hook(
        lambda _, args, kwargs: inputs.append(kwargs["query"]), with_kwargs=True
    )
    found = losses(model, "roberta")["mmd"][0]
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
def test_the_attention_stays_plain(kind: str) -> None:
    """Outputs in training and at test time are plain fairseq's, and eval leaves no loss."""
    plain = zoo.build("transformer")
    model = zoo.build("transformer_alignment", alignment=kind)
    model.load_state_dict(plain.state_dict())
    for mode in (True, False):
        found, expected = (
            zoo.run(m.train(mode), "transformer", SOURCES, TARGETS) for m in (model, plain)
        )
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert bool(list(collect_losses(model))) == mode


def test_the_loss_is_an_average_over_samples_heads_and_layers() -> None:
    model = zoo.build("transformer_alignment", alignment_weight=0.3)
    terms = losses(model.eval(), "transformer")["align"]
    expected = sum(term.value for term in terms) / (6 * 2 * len(SOURCES))  # 3 + 3 layers, 2 heads
    with collecting_losses():
        zoo.run(model, "transformer", SOURCES, TARGETS)
    extra, log = AttentionLosses.__new__(AttentionLosses).named_losses(model, sample_size=7)
    torch.testing.assert_close(log["attention/align"], 7 * expected.detach())
    torch.testing.assert_close(extra, 0.3 * 7 * expected)


def test_an_empty_sentence_does_not_count() -> None:
    model = zoo.build("roberta_alignment", alignment_log_mmd=True).eval()
    alone = losses(model, "roberta")
    with collecting_losses():
        zoo.run(model, "roberta", [*SOURCES, torch.full((9,), zoo.PAD)], TARGETS)
    for name, loss in collect_losses(model):
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
def test_the_criterion(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """objective = task loss + w(t)·align, on a task for each kind; MMD over all and by layer."""
    fixture, flags = CASES[kind]
    schedule = ("--alignment-weight", 0.5, "--alignment-start", 1, "--alignment-warmup", 2)
    flags = (*flags, "--criterion", "alignment", "--alignment", kind, *schedule)
    more = ("--alignment-log-mmd", "--alignment-log-mmd-layers", "--dropout", 0, "--max-update", 5)
    data = request.getfixturevalue(fixture)
    output = commands.train(data, tmp_path, *flags, *more, "--no-save")
    rows = output.stats["train_inner"]
    assert [float(row["align_weight"]) for row in rows] == [0, 0, 0.25, 0.5, 0.5]
    for row in rows:
        terms = float(row["align"]) + float(row.get("align_penalty", 0))
        assert ("align_penalty" in row) == (kind == "gan")
        expected = float(row["loss"]) + float(row["align_weight"]) * terms / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=2e-3, abs=5e-3)
        by_layer = [float(value) for name, value in row.items() if name.startswith("mmd_")]
        assert len(by_layer) == (4 if kind == "gan" else 2)
        assert float(row["mmd"]) == pytest.approx(sum(by_layer) / len(by_layer), abs=2e-3)
    assert {"valid_align", "valid_mmd"} <= set(output.stats["valid"][-1])


@pytest.mark.parametrize("criterion", ["elbo", "alignment"])
def test_on_top_of_babn(criterion: str, translation_data: Path, tmp_path: Path) -> None:
    """The KL keeps its own weight under elbo, the alignment its own under both."""
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--alignment", "ct", "--dropout", 0)
    named = ("--criterion", criterion, "--alignment-weight", 0.2, "--max-update", 3)
    kl = ("--kl-weight", 0.01, "--kl-anneal-updates", 0) if criterion == "elbo" else ()
    output = commands.train(translation_data, tmp_path, *flags, *named, *kl)
    for row in output.stats["train_inner"]:
        assert float(row["align_weight"]) == 0.2
        assert float(row["kl_weight"]) == (0.01 if criterion == "elbo" else 1.0)
        extra = 0.2 * float(row["align"]) + float(row["kl_weight"]) * float(row["kl"])
        expected = float(row["loss"]) + extra / math.log(2)
        assert float(row["objective"]) == pytest.approx(expected, rel=2e-3)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["model"]
    methods = {
        name.split("attention_methods.")[1].split(".")[0] for name in state if "methods" in name
    }
    assert methods == {"babn", "alignment"}


def test_half_precision_learns(lm_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "transformer_lm_alignment", *sizes.TRANSFORMER_LM, "--dropout", 0)
    found = []
    for more in ((), (*PRECISIONS["fp16"], "--fp16-init-scale", 4)):
        named = ("--criterion", "alignment", "--max-update", 8)
        output = commands.train(lm_data, tmp_path / str(len(more)), *flags, *named, *more)
        found.append([float(row["align"]) for row in output.stats["train_inner"]])
        assert output.losses()[-1] < output.losses()[0]
    assert found[1] == pytest.approx(found[0], abs=0.02)


def test_pretrained_in_and_plain_out(lm_data: Path, tmp_path: Path) -> None:
    """From a plain checkpoint, and by the real command back to one without the networks."""
    plain = ("--arch", "transformer_lm", *sizes.TRANSFORMER_LM, "--max-update", 2)
    commands.train(lm_data, tmp_path / "plain", *plain, user_dir=None)
    ours = ("--arch", "transformer_lm_alignment", *plain[2:], "--criterion", "alignment")
    start = ("--finetune-from-model", tmp_path / "plain" / "checkpoint_last.pt")
    commands.train(lm_data, tmp_path / "ours", *ours, *start, "--alignment-share-layers")
    trained, exported = tmp_path / "ours" / "checkpoint_last.pt", tmp_path / "exported.pt"
    result = commands.run("stochattn-export", trained, exported)
    assert result.returncode == 0, result.stderr[-2000:]
    before = compat.load_checkpoint(str(trained))["model"]
    after = compat.load_checkpoint(str(exported))["model"]
    assert any(is_ours(name) for name in before)
    assert set(after) == {name for name in before if not is_ours(name)}
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert "Perplexity" in commands.eval_lm(lm_data, exported).text


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--attention", "alignment", "--alignment", "none"), "needs --alignment gan, ot or ct"),
        (("--alignment", "ct", "--alignment-weight", -1), "--alignment-weight must not"),
        (("--alignment", "ot", "--alignment-ot-epsilon", 0), "--alignment-ot-epsilon must"),
        (("--criterion", "alignment"), "this model aligns nothing"),
    ],
)
def test_mistakes_are_told(
    flags: tuple, complaint: str, translation_data: Path, tmp_path: Path
) -> None:
    arch = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--max-update", 1)
    if "--criterion" not in flags:
        arch = (*arch, "--criterion", "attention_losses")
    with pytest.raises(SystemExit, match=complaint):
        commands.train(translation_data, tmp_path, *arch, *flags)


def test_the_lstm_has_no_self_attention() -> None:
    with pytest.raises(UsageError, match="alignment acts on encoder, decoder attention"):
        zoo.build("lstm_deterministic", alignment="ct")
