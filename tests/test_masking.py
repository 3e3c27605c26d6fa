"""Masks under attack: which cells, which half, what is counted; nothing at test time."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.attention import masking
from fairseq_stochattn.attention.doubling import doubled_batch
from fairseq_stochattn.attention.masking import Masking, masked_cells
from fairseq_stochattn.attention.method import METHODS, collect_losses
from fairseq_stochattn.attention.multihead import StochasticMultiheadAttention
from fairseq_stochattn.attention.schedules import parse_schedules
from fairseq_stochattn.attention.watching import Heads, watching
from fairseq_stochattn.errors import UsageError

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
GONE = 1e-9  # the weight of a masked cell is less
# Much of it, so that a row would often lose everything.
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


def attacked(model: nn.Module, backbone: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    with doubled_batch():
        return zoo.run(model, backbone, SOURCES * 2, TARGETS * 2).chunk(2)


def test_these_are_all() -> None:
    assert set(SHARES) == {name for name, method in METHODS.items() if issubclass(method, Masking)}


@METHOD
@pytest.mark.parametrize("backbone", ["transformer", "roberta", "electra", "transformer_lm"])
def test_the_clean_half_is_a_plain_forward(backbone: str, method: str) -> None:
    model, plain = build(backbone, method), zoo.build(backbone).train()
    model.load_state_dict(plain.state_dict())
    clean, other = attacked(model, backbone)
    expected = zoo.run(plain, backbone, SOURCES, TARGETS)
    torch.testing.assert_close(clean, expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(other, expected, atol=1e-3)


@METHOD
@BACKBONE
def test_masks_keep_a_valid_key_and_open_nothing(backbone: str, method: str) -> None:
    """By the weights themselves: rows, padding, the future, and the share that is logged."""
    model = build(backbone, method)
    layers = [m for m in model.modules() if isinstance(m, StochasticMultiheadAttention)]
    layers = [m for m in layers if m.attention_methods]
    seen: list[Heads] = []
    with watching(layers, seen.append):
        attacked(model, backbone)
    losses: dict[str, list] = {}
    for name, loss in collect_losses(model):
        losses.setdefault(name, []).append(loss)
    masked, valid = 0, 0
    for heads in seen:
        clean, weights = heads.weights.chunk(2)  # (B, H, T, S)
        lengths = (~heads.padding).sum(dim=1)[: len(clean)].tolist()
        for row, length in enumerate(lengths):
            assert torch.allclose(weights[row].sum(dim=-1), torch.ones(()))
            for t in range(length):
                keys = clean[row, :, t].amin(dim=0) > 0  # what a plain softmax reaches
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


def test_masked_cells_by_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    score = torch.randn(5, 1, 6, 4, generator=generator) + 0.5
    valid = torch.rand(5, 1, 6, 4, generator=generator) > 0.4
    found = masked_cells(score, valid)
    for row, keys, chosen in zip(
        *(x.flatten(0, 2).tolist() for x in (score, valid, found)), strict=True
    ):
        wanted = [s > 0 and v for s, v in zip(row, keys, strict=True)]
        if any(keys) and sum(wanted) == sum(keys):
            wanted[min((s, n) for n, s in enumerate(row) if keys[n])[1]] = False
        assert chosen == wanted


@METHOD
def test_masks_are_random_and_follow_the_seed(method: str) -> None:
    model = build("roberta", method)
    found = [attacked(model, "roberta", seed)[1] for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) == (method == "magnitude")


@METHOD
def test_at_test_time_and_without_doubling_there_is_no_mask(method: str) -> None:
    model, plain = build("transformer", method), zoo.build("transformer")
    model.load_state_dict(plain.state_dict())
    for mode in (True, False):
        expected = zoo.run(plain.train(mode), "transformer", SOURCES, TARGETS)
        found = zoo.run(model.train(mode), "transformer", SOURCES, TARGETS)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    list(collect_losses(model))
    for half in attacked(model, "transformer"):  # in eval
        torch.testing.assert_close(half, expected, rtol=1e-6, atol=1e-6)
    assert list(collect_losses(model)) == []


@METHOD
@BACKBONE
def test_extremes_stay_finite_under_attack(backbone: str, method: str) -> None:
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
        with doubled_batch():
            loss = zoo.run(model, backbone, sources * 2, targets * 2).float().pow(2).mean()
        loss = loss + sum(term.value for _, term in collect_losses(model))
        loss.backward()
        assert torch.isfinite(loss)
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@METHOD
def test_half_precision_and_autocast_under_attack(method: str) -> None:
    """In fp16 masks and outputs are those of fp32 but for rounding; gradients are finite."""
    full = build("roberta", method)
    expected = attacked(full, "roberta")
    half = build("roberta", method).half()
    for found, wanted in zip(attacked(half, "roberta"), expected, strict=True):
        assert (found.float() - wanted).abs().mean() < 0.02
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = attacked(full, "roberta")
    assert (mixed[1].float() - expected[1]).abs().mean() < 0.1
    for model, out in ((half, attacked(half, "roberta")[1]), (full, mixed[1])):
        out.float().square().mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_bernoulli_masks_its_share() -> None:
    model = build("roberta", "bernoulli", bernoulli_share=0.3)
    rows = [torch.arange(4, 34)] * 20
    torch.manual_seed(0)
    with doubled_batch():
        zoo.run(model, "roberta", rows * 2, rows)
    for name, loss in collect_losses(model):
        assert loss.count == 20 * 30 * 30, name
        assert (loss.value / loss.count).item() == pytest.approx(0.3, abs=0.011)  # 3 σ


def test_the_schedule_is_linear_between_its_points() -> None:
    (share,) = parse_schedules("--scheduled-shares", "10:0.2,30:0.1,40:0.4", num_layers=1)
    found = [share(update) for update in (0, 10, 20, 30, 35, 40, 99)]
    assert found == pytest.approx([0.2, 0.2, 0.15, 0.1, 0.25, 0.4, 0.4])
    model = build("roberta", "scheduled", scheduled_shares="0:0.0,100:0.5")
    shares = []
    for update in (0, 50, 100):
        model.set_num_updates(update)
        attacked(model, "roberta")
        shares.append(sum(loss.value for _, loss in collect_losses(model)).item())
    assert shares[0] == 0 < shares[1] < shares[2]


def test_magnitude_masks_where_most_attention_is() -> None:
    model = build("roberta", "magnitude", magnitude_share=0.25, attention_layers="first")
    layer = model.encoder.sentence_encoder.layers[0].self_attn
    seen: list[Heads] = []
    with watching([layer], seen.append):
        attacked(model, "roberta")
    clean, weights = seen[0].weights.chunk(2)
    for row, sentence in enumerate(SOURCES):
        n = len(sentence)
        mean = clean[row, :, :n, :n].mean(dim=0)  # (n, n)
        most = mean.flatten().topk(n * n // 4).indices.tolist()
        gone = weights[row, 0, :n, :n] < GONE
        assert sorted(most) == gone.flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"attention": "bernoulli", "bernoulli_share": 1.0}, "--bernoulli-share must be a share"),
        ({"attention": "magnitude", "magnitude_share": -0.1}, "--magnitude-share must be a share"),
        (
            {"attention": "scheduled", "scheduled_shares": "half"},
            "shares: 'half' is no probability",
        ),
        (
            {"attention": "scheduled", "scheduled_shares": "5:0.1,0:0.2"},
            "the updates of .* do not increase",
        ),
        (
            {"attention": "scheduled", "scheduled_shares": "5:1.5"},
            "--scheduled-shares: probabilities are",
        ),
        ({"attention": "asa", "asa_initial_share": 0.0}, "--asa-initial-share must be positive"),
        ({"attention": "asa", "asa_dim": -1}, "--asa-dim must not be negative"),
        ({"attention": "asa,babn"}, "asa masks what others made: name it last"),
        ({"attention": "bernoulli,asa"}, "bernoulli masks what others made: name it last"),
    ],
)
def test_mistakes_are_told(flags: dict, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        zoo.build("roberta_deterministic", **flags)


def test_a_mask_that_no_criterion_uses_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking.Masking, "_warned", False)
    model = build("roberta", "bernoulli")
    with caplog.at_level(logging.WARNING):
        with doubled_batch(False):  # the right criterion, before it starts
            zoo.run(model, "roberta", SOURCES, TARGETS)
        assert caplog.messages == []
        for _ in range(2):
            zoo.run(model, "roberta", SOURCES, TARGETS)
    assert caplog.messages == ["bernoulli attention masks nothing without --criterion asa"]
