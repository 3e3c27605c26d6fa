"""The distances of alignment attention: equations, gradients, which parts minimise or maximise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_stochattn.core.gradients import reverse_gradient
from fairseq_stochattn.methods.alignment import Alignment, gan_loss
from fairseq_stochattn.methods.alignment.distances import build_matcher
from fairseq_stochattn.methods.alignment.networks import highway, plain_highway, run
from fairseq_stochattn.methods.alignment.tokens import TokenSet, gather_rows, pack
from fairseq_stochattn.methods.alignment.transport import conditional_transport, cosine_cost

PADDING = torch.arange(6) >= torch.tensor([6, 4, 1])[:, None]  # (3, 6)


def matcher(kind: str, dim: int = 4, heads: int = 2, **flags: object) -> nn.Module:
    """A matcher with a fixed seed."""
    torch.manual_seed(0)
    return build_matcher(Alignment(distance=kind, **flags), heads, dim)


# The discriminator as in Eq. 2 of the paper, without the three additions of this package.
PAPER = {"gan_blind": True, "gan_penalty": 0.0, "gan_rate": 1.0}


def points(seed: int = 1, dim: int = 4) -> tuple[Tensor, Tensor, TokenSet, TokenSet]:
    """Queries, keys and their token sets, for 3 padded sentences and 2 heads."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 3, 2, 6, dim, generator=generator)
    return q, k + 0.5, TokenSet(q, PADDING), TokenSet(k, PADDING)


def test_reverse_gradient_negates_and_scales_the_gradient() -> None:
    x = torch.tensor([2.0, -1.0], requires_grad=True)
    y = reverse_gradient(x, strength=0.5)
    assert torch.equal(x, y)
    y.square().sum().backward()
    assert torch.equal(x.grad, -x.detach())


def test_highway_has_correct_first_and_second_derivatives() -> None:
    """In fp64, they equal finite differences and the derivatives of the formula by autograd."""
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 2, 4), (8, 4), (8,)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    for tensor in inputs:
        tensor.requires_grad_()
    torch.testing.assert_close(highway(*inputs), plain_highway(*inputs))
    grad_out = torch.randn(shapes[0], generator=generator, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad(f(*inputs), inputs, grad_out) for f in (highway, plain_highway)
    )
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(highway, inputs)
    assert torch.autograd.gradgradcheck(highway, inputs)


def test_gather_rows_equals_indexing_and_concatenation() -> None:
    """Values, gradients and second derivatives are equal in fp64."""
    a, b = (torch.randn(n, 2, 3, dtype=torch.float64, requires_grad=True) for n in (5, 6))
    some = torch.tensor([4, 0, 2])
    for in_a, in_b in ((some, None), (None, some), (some, some), (None, None)):
        rows = gather_rows(a, b, in_a, in_b, strength=-2.0)
        parts = (x if index is None else x[index] for x, index in ((a, in_a), (b, in_b)))
        expected = torch.cat(list(parts))
        assert torch.equal(rows, expected)
        grad_rows = torch.randn_like(rows)
        found = torch.autograd.grad(rows, (a, b), -0.5 * grad_rows)
        torch.testing.assert_close(found, torch.autograd.grad(expected, (a, b), grad_rows))

        def forward(x: Tensor, y: Tensor, in_x: Tensor | None = in_a) -> Tensor:
            return gather_rows(x, y, in_x, None)

        assert torch.autograd.gradgradcheck(forward, (a, b))


def test_pack_removes_padding_and_unpack_restores_it() -> None:
    q, k, queries, keys = points()
    rows, counts = pack(q, k, queries, keys)
    assert rows.shape == (2 * (6 + 4 + 1), 2, 4)
    for x, tokens, part in zip((q, k), (queries, keys), rows.split(counts), strict=True):
        torch.testing.assert_close(tokens.unpack(part), x.masked_fill(PADDING[:, None, :, None], 0))
    expected = torch.tensor([1 / 4] * 4 + [0.0] * 2)
    torch.testing.assert_close(queries.mass[1, 0], expected)
    unpadded = TokenSet(q, None)
    for tokens in (keys, unpadded):  # padding in the keys only, or nowhere
        rows, counts = pack(q, k, unpadded, tokens)
        torch.testing.assert_close(unpadded.unpack(rows.split(counts)[0]), q)


def test_gan_loss_equals_the_cross_entropy_of_eq_2() -> None:
    q, k, queries, keys = points()
    gan = matcher("gan", **PAPER)
    found = gan(q, k, queries, keys)
    assert not gan.has_penalty
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


def test_discriminator_is_conditioned_on_the_head() -> None:
    """The output of the one network for the same vector depends on the head."""
    q, k, queries, keys = points()
    conditioned, blind = matcher("gan", gan_rate=1.0), matcher("gan", **PAPER)
    blind.d = nn.Sequential(*conditioned.d[1:])
    shift = conditioned.d[0].weight.detach()[:, None]  # (H, 1, d)
    torch.testing.assert_close(
        conditioned(q, k, queries, keys), blind(q + shift, k + shift, queries, keys)
    )
    same = q[:, :1].expand_as(q)
    assert not torch.allclose(*conditioned(same, same, queries, keys).unbind(1))
    torch.testing.assert_close(*blind(same, same, queries, keys).unbind(1))


def test_rate_multiplies_the_learning_rate_of_the_discriminator() -> None:
    """The initial loss stays the same, but Adam moves the discriminator ten times as far."""
    q, k, queries, keys = points()
    steps, losses = [], []
    for rate in (1.0, 10.0):
        gan = matcher("gan", gan_rate=rate)
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
def test_blockwise_gan_loss_equals_autograd(
    blind: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and all gradients in fp64, over several blocks, with a sentence without queries."""
    monkeypatch.setattr(gan_loss, "BLOCK", 6)
    gan = matcher("gan", gan_blind=blind).double()
    q, k = (x.double().requires_grad_() for x in points()[:2])
    query_padding = PADDING.clone()
    query_padding[1] = True
    queries, keys = (TokenSet(q, x if padded else None) for x in (query_padding, PADDING))
    total = gan.total(q, k, queries, keys)
    each = gan(q, k, queries, keys)
    expected = each[0].sum() + each[2].sum() + (0 if padded else each[1].sum())
    torch.testing.assert_close(total, expected)
    leaves = (q, k, *gan.parameters())
    found = torch.autograd.grad(3 * total, leaves)
    torch.testing.assert_close(found, torch.autograd.grad(3 * expected, leaves))
    with torch.no_grad():
        torch.testing.assert_close(gan.total(q, k, queries, keys), expected)


def test_input_gradients_equal_autograd() -> None:
    gan = matcher("gan", dim=5).double()
    x = torch.randn(4, 2, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(run(gan.d, x, rate=gan.rate).sum(), x)
    torch.testing.assert_close(gan_loss.input_gradients(x, gan.weights(x)), expected.flatten(0, 1))


def test_penalty_equals_the_squared_gradient() -> None:
    """It equals γ/2·E_q ‖∇D‖² + γ/2·E_k ‖∇D‖² by finite differences on every 32nd token.

    Only the discriminator D receives a gradient from it.
    """
    torch.manual_seed(0)
    gan = matcher("gan", gan_penalty=0.3).double()
    q, k = torch.randn(2, 1, 2, 40, 4, dtype=torch.float64)
    tokens = TokenSet(q, (torch.arange(40) >= 34)[None])
    q.requires_grad_()
    found = gan.penalty(q, k, tokens, tokens)

    def d(x: Tensor) -> Tensor:
        return run(gan.d, x, rate=gan.rate).squeeze(-1)  # (N, H)

    total = 0.0
    x = torch.stack([q[0, :, 0], q[0, :, 32], k[0, :, 0], k[0, :, 32]]).detach()  # out of 34 each
    for axis in torch.eye(4, dtype=x.dtype) * 1e-6:
        derivative = (d(x + axis) - d(x - axis)) / 2e-6
        total += 0.3 * derivative.square().sum().item() / derivative.numel()
    assert found.item() == pytest.approx(total, rel=1e-6)
    found.backward()
    assert q.grad is None
    assert all(p.grad is not None for name, p in gan.named_parameters() if name.endswith("weight"))


def test_ct_equals_eq_4_with_its_networks() -> None:
    q, k, queries, keys = points()
    ct = matcher("ct", ct_temperature=0.5)
    affinity = torch.matmul(ct.navigator(q), ct.navigator(k).transpose(2, 3)) / 0.5
    cost = cosine_cost(ct.critic(q), ct.critic(k))
    expected = conditional_transport(affinity, cost, queries.mass, keys.mass)
    torch.testing.assert_close(ct(q, k, queries, keys), expected)


# True if gradient descent on this part alone makes the loss smaller.
MINIMISES = {
    "gan": {"q": False, "k": False, "d": True},
    "ot": {"q": True, "k": True},
    "ct": {"q": True, "k": True, "navigator": True, "critic": False},
}


@pytest.mark.parametrize(("kind", "part"), [(x, part) for x in MINIMISES for part in MINIMISES[x]])
def test_each_part_minimises_or_maximises_the_loss(kind: str, part: str) -> None:
    """One step of gradient descent on one part alone changes the loss as expected."""
    q, k, queries, keys = points()
    model = matcher(kind)
    q.requires_grad_(), k.requires_grad_()
    before = model(q, k, queries, keys).sum()
    before.backward()
    parts = {"q": [q], "k": [k]}
    parts |= {name: list(network.parameters()) for name, network in model.named_children()}
    squared_norm = sum(p.grad.square().sum().item() for p in parts[part])
    assert squared_norm > 0
    step = 1e-2 / squared_norm**0.5
    with torch.no_grad():
        for p in parts[part]:
            p -= step * p.grad
        after = model(q, k, queries, keys).sum()
    change = (after - before).item()
    expected = -step * squared_norm if MINIMISES[kind][part] else step * squared_norm
    assert change == pytest.approx(expected, rel=0.15)


def test_training_makes_queries_and_keys_indistinguishable() -> None:
    """D classifies 95 % correctly at first. After training W_Q and W_K, not even a new D can."""
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
            tokens = torch.randn(8, 1, 32, 6)  # the input of W_Q and W_K
            unpadded = TokenSet(tokens, None)
            inputs = w_q(tokens), w_k(tokens), unpadded, unpadded
            optimizer.zero_grad()
            (gan(*inputs).mean() + gan.penalty(*inputs)).backward()
            optimizer.step()
        return accuracy(gan)

    gan = matcher("gan", dim=6, heads=1)
    d_alone = train(gan, updates=200)
    jointly = train(gan, w_q, w_k, updates=1000)
    new_d = train(matcher("gan", dim=6, heads=1), updates=200)
    print(f"accuracy: D alone {d_alone:.3f}, jointly {jointly:.3f}, new D {new_d:.3f}")
    assert d_alone > 0.95
    assert abs(jointly - 0.5) < 0.1
    assert new_d < 0.7
