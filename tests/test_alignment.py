"""Alignment attention: the three losses against their equations, who descends and who climbs."""

from __future__ import annotations

import math
from argparse import Namespace
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import commands
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.attention.alignment import AlignmentConfig
from fairseq_stochattn.attention.matching import MATCHERS, Tokens, build_matcher, pack, run
from fairseq_stochattn.attention.method import collect_losses, collecting_losses
from fairseq_stochattn.criterions.attention_losses import AttentionLosses
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import is_ours
from fairseq_stochattn.gradients import reverse_gradient
from fairseq_stochattn.transport import conditional_transport, cosine_cost, squared_mmd
from test_precision import PRECISIONS

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
KINDS = pytest.mark.parametrize("kind", MATCHERS)
PADDING = torch.arange(6) >= torch.tensor([6, 4, 1])[:, None]  # (3, 6)


def matcher(kind: str, dim: int = 4, heads: int = 2, **flags: object) -> nn.Module:
    config = {entry.name: entry.default for entry in fields(AlignmentConfig)}
    torch.manual_seed(0)
    return build_matcher(Namespace(**{**config, "alignment": kind, **flags}), heads, dim)


# Eq. 2 and nothing else.
PAPER = {"alignment_gan_blind": True, "alignment_gan_penalty": 0.0, "alignment_gan_rate": 1.0}


def points(seed: int = 1, dim: int = 4) -> tuple[Tensor, Tensor, Tokens, Tokens]:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 3, 2, 6, dim, generator=generator)
    return q, k + 0.5, Tokens(q, PADDING), Tokens(k, PADDING)


def losses(model: nn.Module, backbone: str, **batch: object) -> dict[str, list]:
    with collecting_losses():
        zoo.run(model, backbone, SOURCES, TARGETS, **batch)
    found: dict[str, list] = {}
    for name, loss in collect_losses(model):
        found.setdefault(name, []).append(loss)
    return found


def test_reversal() -> None:
    x = torch.tensor([2.0, -1.0], requires_grad=True)
    y = reverse_gradient(x, strength=0.5)
    assert torch.equal(x, y)
    y.square().sum().backward()
    assert torch.equal(x.grad, -x.detach())


def test_packing_leaves_padding_out() -> None:
    q, k, queries, keys = points()
    rows, sides = pack(q, k, queries, keys)
    assert rows.shape == (2 * (6 + 4 + 1), 2, 4)
    for x, tokens, real in zip((q, k), (queries, keys), rows.split(sides), strict=True):
        torch.testing.assert_close(tokens.unpack(real), x.masked_fill(PADDING[:, None, :, None], 0))
    expected = torch.tensor([1 / 4] * 4 + [0.0] * 2)
    torch.testing.assert_close(queries.mass[1, 0], expected)
    everyone = Tokens(q, None)
    for tokens in (keys, everyone):  # one side or none has padding
        rows, sides = pack(q, k, everyone, tokens)
        torch.testing.assert_close(everyone.unpack(rows.split(sides)[0]), q)


def test_gan_is_the_cross_entropy_of_eq_2() -> None:
    q, k, queries, keys = points()
    gan = matcher("gan", **PAPER)
    found = gan(q, k, queries, keys)
    assert gan.penalty(q, k, queries, keys) is None
    highway, first, _, second = gan.d

    def d(x: Tensor) -> Tensor:
        phi_tau, phi_h = highway.gate_and_transform(x).chunk(2, dim=-1)
        gate = torch.sigmoid(phi_tau)
        mixed = gate * torch.relu(phi_h) + (1 - gate) * x
        return torch.sigmoid(second(F.leaky_relu(first(mixed))))

    for b, n in enumerate((6, 4, 1)):
        for h in range(2):
            value = -d(q[b, h, :n]).log().mean() - (1 - d(k[b, h, :n])).log().mean()
            torch.testing.assert_close(found[b, h], value)


def test_the_discriminator_is_told_the_head() -> None:
    """One network, which may judge the same vector differently in another head."""
    q, k, queries, keys = points()
    told, blind = matcher("gan", alignment_gan_rate=1.0), matcher("gan", **PAPER)
    blind.d = nn.Sequential(*told.d[1:])
    shift = told.d[0].weight.detach()[:, None]  # (H, 1, d)
    torch.testing.assert_close(
        told(q, k, queries, keys), blind(q + shift, k + shift, queries, keys)
    )
    same = q[:, :1].expand_as(q)
    assert not torch.allclose(*told(same, same, queries, keys).unbind(1))
    torch.testing.assert_close(*blind(same, same, queries, keys).unbind(1))


def test_the_rate_is_that_of_the_discriminator_alone() -> None:
    """At first the same loss and, under Adam, steps of the discriminator ten times as long."""
    q, k, queries, keys = points()
    steps, losses = [], []
    for rate in (1.0, 10.0):
        gan = matcher("gan", alignment_gan_rate=rate)
        before = {name: p.detach() * rate for name, p in gan.named_parameters()}
        optimizer = torch.optim.Adam(gan.parameters(), lr=1e-3, eps=0.0)
        loss = gan(q, k, queries, keys).sum()
        loss.backward()
        optimizer.step()
        steps.append({name: p.detach() * rate - before[name] for name, p in gan.named_parameters()})
        losses.append(loss)
    torch.testing.assert_close(*losses)
    for name, step in steps[0].items():
        torch.testing.assert_close(steps[1][name], 10 * step, rtol=1e-2, atol=1e-5)


def test_the_penalty_is_the_squared_slope() -> None:
    """γ/2·E_q ‖∇D‖² + γ/2·E_k ‖∇D‖² by differences, on every 32nd real vector; D alone pays."""
    torch.manual_seed(0)
    gan = matcher("gan", alignment_gan_penalty=0.3).double()
    q, k = torch.randn(2, 1, 2, 40, 4, dtype=torch.float64)
    tokens = Tokens(q, (torch.arange(40) >= 34)[None])
    q.requires_grad_()
    found = gan.penalty(q, k, tokens, tokens)

    def d(x: Tensor) -> Tensor:
        return run(gan.d, x, rate=gan.rate).squeeze(-1)  # (N, H)

    total = 0.0
    x = torch.stack([q[0, :, 0], q[0, :, 32], k[0, :, 30]]).detach()  # 34 queries, 34 keys
    for axis in torch.eye(4, dtype=x.dtype) * 1e-6:
        slope = (d(x + axis) - d(x - axis)) / 2e-6
        total += 0.3 * slope.square().sum().item() / slope.numel()
    assert found.item() == pytest.approx(total, rel=1e-6)
    found.backward()
    assert q.grad is None
    assert all(p.grad is not None for name, p in gan.named_parameters() if name.endswith("weight"))


def test_ct_is_eq_4_with_its_networks() -> None:
    q, k, queries, keys = points()
    ct = matcher("ct")
    affinity = torch.matmul(ct.navigator(q), ct.navigator(k).transpose(2, 3))
    cost = cosine_cost(ct.critic(q), ct.critic(k))
    expected = conditional_transport(affinity, cost, queries.mass, keys.mass)
    torch.testing.assert_close(ct(q, k, queries, keys), expected)


# Whether a step against the gradient makes the loss smaller.
DESCENDS = {
    "gan": {"q": False, "k": False, "d": True},
    "ot": {"q": True, "k": True},
    "ct": {"q": True, "k": True, "navigator": True, "critic": False},
}


@pytest.mark.parametrize(("kind", "who"), [(x, who) for x in DESCENDS for who in DESCENDS[x]])
def test_directions(kind: str, who: str) -> None:
    """A finite step of one player alone against its gradient, as an optimizer does it."""
    q, k, queries, keys = points()
    model = matcher(kind)
    q.requires_grad_(), k.requires_grad_()
    before = model(q, k, queries, keys).sum()
    before.backward()
    players = {"q": [q], "k": [k]}
    players |= {name: list(part.parameters()) for name, part in model.named_children()}
    slope = sum(p.grad.square().sum().item() for p in players[who])
    assert slope > 0
    step = 1e-2 / slope**0.5
    with torch.no_grad():
        for p in players[who]:
            p -= step * p.grad
        after = model(q, k, queries, keys).sum()
    change = (after - before).item()
    expected = -step * slope if DESCENDS[kind][who] else step * slope
    assert change == pytest.approx(expected, rel=0.15)


def test_the_discriminator_tells_clouds_apart_until_they_learn() -> None:
    """D alone passes 95 % on separable clouds; once W_Q and W_K have learnt, a new D cannot."""
    torch.manual_seed(0)
    w_q, w_k = nn.Linear(6, 6), nn.Linear(6, 6)
    nn.init.constant_(w_q.bias, 1.5)

    def accuracy(gan: nn.Module) -> float:
        tokens = torch.randn(2000, 6)
        with torch.no_grad():
            right = (
                run(gan.d, w_q(tokens)[:, None], rate=gan.rate) > 0,
                run(gan.d, w_k(tokens)[:, None], rate=gan.rate) < 0,
            )
        return torch.cat(right).float().mean().item()

    def train(gan: nn.Module, *others: nn.Module, updates: int) -> float:
        optimizer = torch.optim.Adam([p for x in (gan, *others) for p in x.parameters()], lr=1e-3)
        for _ in range(updates):
            tokens = torch.randn(8, 1, 32, 6)  # what W_Q and W_K are applied to
            everyone = Tokens(tokens, None)
            cloud = w_q(tokens), w_k(tokens), everyone, everyone
            optimizer.zero_grad()
            (gan(*cloud).mean() + gan.penalty(*cloud)).backward()
            optimizer.step()
        return accuracy(gan)

    gan = matcher("gan", dim=6, heads=1)
    frozen = train(gan, updates=200)
    learning = train(gan, w_q, w_k, updates=1000)
    anew = train(matcher("gan", dim=6, heads=1), updates=200)
    print(f"discriminator: frozen {frozen:.3f}, learning {learning:.3f}, anew {anew:.3f}")
    assert frozen > 0.95
    assert abs(learning - 0.5) < 0.1
    assert anew < 0.7


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
