"""Masks: which (query, key) pairs are masked, in which half, and what is logged."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core import masking
from fairseq_stochattn.core.head_hooks import HeadOutputs, hook_heads
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.core.masking import MaskingMethod, masked_pairs
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.core.paired_batch import paired_batch
from fairseq_stochattn.core.schedule import parse_schedules
from fairseq_stochattn.models.multihead_attention import StochasticMultiheadAttention

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
GONE = 1e-9  # masked pairs have a smaller weight
# Large shares, so that all pairs of a row would often be masked.
SHARES = {
    "asa": {"asa_initial_share": 0.8},
    "bernoulli": {"bernoulli_share": 0.8},
    "scheduled": {"scheduled_shares": "0:0.8"},
    "magnitude": {"magnitude_share": 0.8},
}
METHOD = pytest.mark.parametrize("method", SHARES)
BACKBONE = pytest.mark.parametrize("backbone", ["transformer", "roberta", "electra"])


def build(backbone: str, method: str, **overrides) -> nn.Module:
    return zoo.build(f"{backbone}_{method}", **{**SHARES[method], **overrides}).train()


def run_paired(model: nn.Module, backbone: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The outputs of the clean and of the adversarial half of a paired batch."""
    torch.manual_seed(seed)
    with paired_batch():
        return zoo.run(model, backbone, SOURCES * 2, TARGETS * 2).chunk(2)


def test_all_masking_methods_are_tested() -> None:
    assert set(SHARES) == {
        name for name, method in METHODS.items() if issubclass(method, MaskingMethod)
    }


@METHOD
@pytest.mark.parametrize("backbone", ["transformer", "roberta", "electra", "transformer_lm"])
def test_the_clean_half_is_plain(backbone: str, method: str) -> None:
    """In double precision, since rounding of single precision reaches 1e-6 on some processors."""
    model, plain = build(backbone, method).double(), zoo.build(backbone).train().double()
    model.load_state_dict(plain.state_dict())
    clean, other = run_paired(model, backbone)
    expected = zoo.run(plain, backbone, SOURCES, TARGETS)
    torch.testing.assert_close(clean, expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(other, expected, atol=1e-3)


@METHOD
@BACKBONE
def test_masks_keep_a_valid_key_and_unblock_none(backbone: str, method: str) -> None:
    """Checked on the attention weights: rows, padding, future tokens, and the logged share."""
    model = build(backbone, method)
    layers = [m for m in model.modules() if isinstance(m, StochasticMultiheadAttention)]
    layers = [m for m in layers if m.attention_methods]
    seen: list[HeadOutputs] = []
    with hook_heads(layers, seen.append):
        run_paired(model, backbone)
    losses: dict[str, list] = {}
    for name, loss in take_losses(model):
        losses.setdefault(name, []).append(loss)
    masked, valid = 0, 0
    for heads in seen:
        clean, weights = heads.weights.chunk(2)  # (B, H, T, S)
        lengths = (~heads.padding).sum(dim=1)[: len(clean)].tolist()
        for row, length in enumerate(lengths):
            assert torch.allclose(weights[row].sum(dim=-1), torch.ones(()))
            for t in range(length):
                keys = clean[row, :, t].amin(dim=0) > 0  # the valid keys
                left = weights[row, :, t] > GONE
                assert left.any(dim=-1).all()
                assert not (left & ~keys).any()
                assert torch.equal(left.all(dim=0), left.any(dim=0))  # one mask for all heads
                valid += int(keys.sum())
                masked += int((keys & ~left[0]).sum())
    assert sum(loss.value for loss in losses["masked_share"]) == masked
    assert sum(loss.count for loss in losses["masked_share"]) == valid
    by_layer = [loss for name, (loss, *_) in losses.items() if name.startswith("masked_share_")]
    assert len(by_layer) == len(seen) == len(layers)
    assert sum(loss.value for loss in by_layer) == masked
    assert 0.3 < masked / valid < 0.8


def test_masked_pairs_equal_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    score = torch.randn(5, 1, 6, 4, generator=generator) + 0.5
    valid = torch.rand(5, 1, 6, 4, generator=generator) > 0.4
    found = masked_pairs(score, valid)
    for row, keys, chosen in zip(
        *(x.flatten(0, 2).tolist() for x in (score, valid, found)), strict=True
    ):
        wanted = [s > 0 and v for s, v in zip(row, keys, strict=True)]
        if any(keys) and sum(wanted) == sum(keys):
            wanted[min((s, n) for n, s in enumerate(row) if keys[n])[1]] = False
        assert chosen == wanted


@METHOD
def test_random_masks_follow_the_seed(method: str) -> None:
    model = build("roberta", method)
    found = [run_paired(model, "roberta", seed)[1] for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) == (method == "magnitude")


@METHOD
def test_without_a_paired_batch_and_at_test_time_nothing_is_masked(method: str) -> None:
    model, plain = build("transformer", method).double(), zoo.build("transformer").double()
    model.load_state_dict(plain.state_dict())
    for mode in (True, False):
        expected = zoo.run(plain.train(mode), "transformer", SOURCES, TARGETS)
        found = zoo.run(model.train(mode), "transformer", SOURCES, TARGETS)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    list(take_losses(model))
    for half in run_paired(model, "transformer"):  # in eval
        torch.testing.assert_close(half, expected, rtol=1e-6, atol=1e-6)
    assert list(take_losses(model)) == []


@METHOD
@BACKBONE
def test_extreme_inputs_stay_finite(backbone: str, method: str) -> None:
    empty = torch.full((9,), zoo.PAD)
    sources, targets = [SOURCES[0], SOURCES[3]], [TARGETS[0], TARGETS[3]]
    if backbone in zoo.ENCODERS:
        sources = [*sources, empty]
    for size in (1.0, 1e4):
        model = build(backbone, method)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("q_proj.weight", "queries_and_keys.weight")):
                    parameter.mul_(size)
        with paired_batch():
            loss = zoo.run(model, backbone, sources * 2, targets * 2).float().pow(2).mean()
        loss = loss + sum(term.value for _, term in take_losses(model))
        loss.backward()
        assert torch.isfinite(loss)
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@METHOD
def test_half_precision_and_autocast(method: str) -> None:
    """Masks and outputs equal those of fp32 up to rounding; gradients are finite."""
    full = build("roberta", method)
    expected = run_paired(full, "roberta")
    half = build("roberta", method).half()
    for found, wanted in zip(run_paired(half, "roberta"), expected, strict=True):
        assert (found.float() - wanted).abs().mean() < 0.02
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = run_paired(full, "roberta")
    assert (mixed[1].float() - expected[1]).abs().mean() < 0.1
    for model, out in ((half, run_paired(half, "roberta")[1]), (full, mixed[1])):
        out.float().square().mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_bernoulli_masks_the_given_share() -> None:
    model = build("roberta", "bernoulli", bernoulli_share=0.3)
    rows = [torch.arange(4, 34)] * 20
    torch.manual_seed(0)
    with paired_batch():
        zoo.run(model, "roberta", rows * 2, rows)
    for name, loss in take_losses(model):
        assert loss.count == 20 * 30 * 30, name
        assert (loss.value / loss.count).item() == pytest.approx(0.3, abs=0.011)  # 3 σ


def test_the_schedule_is_linear_between_its_points() -> None:
    (share,) = parse_schedules("10:0.2,30:0.1,40:0.4", num_layers=1)
    found = [share(update) for update in (0, 10, 20, 30, 35, 40, 99)]
    assert found == pytest.approx([0.2, 0.2, 0.15, 0.1, 0.25, 0.4, 0.4])
    model = build("roberta", "scheduled", scheduled_shares="0:0.0,100:0.5")
    shares = []
    for update in (0, 50, 100):
        model.set_num_updates(update)
        run_paired(model, "roberta")
        shares.append(sum(loss.value for _, loss in take_losses(model)).item())
    assert shares[0] == 0 < shares[1] < shares[2]


def test_magnitude_masks_the_largest_weights() -> None:
    model = build("roberta", "magnitude", magnitude_share=0.25, attention_layers="first")
    layer = model.encoder.sentence_encoder.layers[0].self_attn
    seen: list[HeadOutputs] = []
    with hook_heads([layer], seen.append):
        run_paired(model, "roberta")
    clean, weights = seen[0].weights.chunk(2)
    for row, sentence in enumerate(SOURCES):
        n = len(sentence)
        mean = clean[row, :, :n, :n].mean(dim=0)  # (n, n)
        most = mean.flatten().topk(n * n // 4).indices.tolist()
        masked = weights[row, 0, :n, :n] < GONE
        assert sorted(most) == masked.flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"attention": "bernoulli", "bernoulli_share": 1.0}, "--bernoulli-share must be a share"),
        ({"attention": "magnitude", "magnitude_share": -0.1}, "--magnitude-share must be a share"),
        (
            {"attention": "scheduled", "scheduled_shares": "half"},
            "--scheduled-shares .*'half' is not a schedule: give a probability",
        ),
        (
            {"attention": "scheduled", "scheduled_shares": "5:0.1,0:0.2"},
            "the updates of .* must increase",
        ),
        (
            {"attention": "scheduled", "scheduled_shares": "5:1.5"},
            "--scheduled-shares .*probabilities must be at least 0 and below 1",
        ),
        ({"attention": "asa", "asa_initial_share": 0.0}, "--asa-initial-share must be positive"),
        ({"attention": "asa", "asa_dim": -1}, "--asa-dim must not be negative"),
        ({"attention": "asa,babn"}, "asa masks the output of the other methods: name it last"),
        (
            {"attention": "bernoulli,asa"},
            "bernoulli masks the output of the other methods: name it last",
        ),
    ],
)
def test_bad_flags_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        zoo.build("roberta_deterministic", **flags)


def test_training_with_another_criterion_warns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking.MaskingMethod, "_warned", False)
    model = build("roberta", "bernoulli")
    with caplog.at_level(logging.WARNING):
        with paired_batch(False):  # criterion asa before --asa-start
            zoo.run(model, "roberta", SOURCES, TARGETS)
        assert caplog.messages == []
        for _ in range(2):
            zoo.run(model, "roberta", SOURCES, TARGETS)
    assert caplog.messages == ["bernoulli attention masks nothing without --criterion asa"]
