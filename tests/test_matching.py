"""The distances of alignment attention against their equations; who descends and who climbs."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_stochattn.attention import judging
from fairseq_stochattn.attention.alignment import AlignmentConfig
from fairseq_stochattn.attention.matching import Tokens, build_matcher, pack, run
from fairseq_stochattn.gradients import gather_rows, highway, plain_highway, reverse_gradient
from fairseq_stochattn.transport import conditional_transport, cosine_cost

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


def test_reversal() -> None:
    x = torch.tensor([2.0, -1.0], requires_grad=True)
    y = reverse_gradient(x, strength=0.5)
    assert torch.equal(x, y)
    y.square().sum().backward()
    assert torch.equal(x.grad, -x.detach())


def test_the_highway_has_the_gradient_of_its_formula_twice() -> None:
    """In double precision, against differences and against autograd on the formula itself."""
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 2, 4), (8, 4), (8,)
    given = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    for tensor in given:
        tensor.requires_grad_()
    torch.testing.assert_close(highway(*given), plain_highway(*given))
    dy = torch.randn(shapes[0], generator=generator, dtype=torch.float64)
    fast, slow = (torch.autograd.grad(f(*given), given, dy) for f in (highway, plain_highway))
    torch.testing.assert_close(fast, slow)
    assert torch.autograd.gradcheck(highway, given)
    assert torch.autograd.gradgradcheck(highway, given)


def test_gathered_rows_send_their_gradient_home() -> None:
    """Against indexing and concatenation, in double precision, once and twice."""
    a, b = (torch.randn(n, 2, 3, dtype=torch.float64, requires_grad=True) for n in (5, 6))
    some = torch.tensor([4, 0, 2])
    for in_a, in_b in ((some, None), (None, some), (some, some), (None, None)):
        rows = gather_rows(a, b, in_a, in_b, strength=-2.0)
        parts = (x if index is None else x[index] for x, index in ((a, in_a), (b, in_b)))
        expected = torch.cat(list(parts))
        assert torch.equal(rows, expected)
        dy = torch.randn_like(rows)
        found = torch.autograd.grad(rows, (a, b), -0.5 * dy)
        torch.testing.assert_close(found, torch.autograd.grad(expected, (a, b), dy))

        def forward(x: Tensor, y: Tensor, at: Tensor | None = in_a) -> Tensor:
            return gather_rows(x, y, at, None)

        assert torch.autograd.gradgradcheck(forward, (a, b))


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
    assert not gan.pays
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


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_judged_in_one_go_as_by_autograd(
    blind: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and every gradient, in double precision, over several blocks; one sentence has no
    query."""
    monkeypatch.setattr(judging, "BLOCK", 6)
    gan = matcher("gan", alignment_gan_blind=blind).double()
    q, k = (x.double().requires_grad_() for x in points()[:2])
    absent = PADDING.clone()
    absent[1] = True
    queries, keys = (Tokens(q, x if padded else None) for x in (absent, PADDING))
    total = gan.total(q, k, queries, keys)
    each = gan(q, k, queries, keys)
    expected = each[0].sum() + each[2].sum() + (0 if padded else each[1].sum())
    torch.testing.assert_close(total, expected)
    given = (q, k, *gan.parameters())
    found = torch.autograd.grad(3 * total, given)
    torch.testing.assert_close(found, torch.autograd.grad(3 * expected, given))
    with torch.no_grad():
        torch.testing.assert_close(gan.total(q, k, queries, keys), expected)


def test_slopes_are_those_of_autograd() -> None:
    gan = matcher("gan", dim=5).double()
    x = torch.randn(4, 2, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(run(gan.d, x, rate=gan.rate).sum(), x)
    torch.testing.assert_close(judging.slopes(x, gan.judge(x)), expected.flatten(0, 1))


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
    x = torch.stack([q[0, :, 0], q[0, :, 32], k[0, :, 0], k[0, :, 32]]).detach()  # of 34 each
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
