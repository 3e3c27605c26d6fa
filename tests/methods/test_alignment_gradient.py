"""Alignment: where the gradient of the loss goes, and what shrinking all points does to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphs
import zoo
from fairseq_stochattn.core.gradients import through_projection
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.integrations.convert import convert
from fairseq_stochattn.methods.alignment import Alignment
from fairseq_stochattn.methods.alignment.clouds import standardized
from fairseq_stochattn.methods.alignment.distances import build_matcher, mean_cost
from fairseq_stochattn.methods.alignment.meter import COLLAPSED, relative_spread
from fairseq_stochattn.methods.alignment.tokens import TokenSet
from fairseq_stochattn.methods.alignment.transport import euclidean_cost, sinkhorn

DISTANCES = ("gan", "ot", "ct")


def clouds(
    batch: int = 2, tokens: int = 7, shift: float = 1.0, dim: int = 4
) -> tuple[Tensor, Tensor, TokenSet, TokenSet]:
    """Random queries and keys (B, 2, T, d), with padding in the second sentence."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn((2, batch, 2, tokens, dim), generator=generator, dtype=torch.float64)
    padding = torch.zeros(batch, tokens, dtype=torch.bool)
    padding[1, -2:] = True
    return q, k + shift, TokenSet(q, padding), TokenSet(k, padding)


def matcher(distance: str, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    return build_matcher(Alignment(distance=distance, **settings).resolved(), 2, 4).double()


def align_gradients(model: nn.Module, loss_weight: float = 1.0) -> dict[str, float]:
    """Back-propagate the alignment loss alone; the norm of the gradient of every parameter."""
    losses = [loss.value for name, loss in take_losses(model) if name == "align"]
    model.zero_grad()
    sum(losses).backward()
    return {
        name: 0.0 if p.grad is None else float(p.grad.norm())
        for name, p in model.named_parameters()
        if "attention_methods" not in name and "attention_stacks" not in name
    }


def test_a_projection_gets_the_whole_gradient_and_its_input_none() -> None:
    x = torch.randn(5, 3, 4, requires_grad=True)
    linear, direction = nn.Linear(4, 6), torch.randn(5, 3, 6)
    out = through_projection(linear(x), x, linear.weight, linear.bias)
    assert torch.equal(out, linear(x))
    (out * direction).sum().backward()
    assert x.grad is None
    found = [linear.weight.grad, linear.bias.grad]
    wanted = torch.autograd.grad((linear(x) * direction).sum(), [linear.weight, linear.bias])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("distance", DISTANCES)
def test_only_w_q_and_w_k_are_aligned(distance: str) -> None:
    """With ``through`` projections; the same gradient reaches them with ``model`` in layer 0."""
    found = {}
    for through in ("projections", "model"):
        flags = {"alignment": distance, "alignment_through": through, "attention_layers": "2"}
        model = zoo.build("roberta_alignment", **flags).train()
        zoo.run(model, "roberta", zoo.sentences(6, 4), None)
        found[through] = align_gradients(model)
    aligned = {"q_proj", "k_proj"}
    for name, norm in found["projections"].items():
        assert (norm > 0) == ("layers.2" in name and bool(aligned & set(name.split(".")))), name
    below = [norm for name, norm in found["model"].items() if "layers.0" in name]
    assert max(below) > 0
    for name, norm in found["projections"].items():
        if norm > 0:
            assert found["model"][name] == pytest.approx(norm, rel=1e-4)


def test_the_projections_of_torch_attention_are_aligned() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    convert(model, Alignment(distance="ot", through="projections"), layers=[1])
    model(torch.randn(2, 5, 8))
    gradients = align_gradients(model)
    assert {name for name, norm in gradients.items() if norm > 0} == {
        "layers.1.self_attn.in_proj_weight",
        "layers.1.self_attn.in_proj_bias",
    }


def test_a_graph_layer_aligns_w_and_a_but_not_the_layer_below(tmp_path: Path) -> None:
    data = graphs.write_graph(tmp_path / "graph")
    model, _ = graphs.build(
        data, "gat_alignment", attention_layers="1", alignment_through="projections"
    )
    model.train()(torch.arange(40)[None])
    gradients = align_gradients(model)
    positive = {name for name, norm in gradients.items() if norm > 0}
    assert positive == {f"encoder.layers.1.{name}" for name in ("weight", "a_q", "a_k")}


@pytest.mark.parametrize("distance", DISTANCES)
def test_shrinking_all_points_does_not_lower_the_loss(distance: str) -> None:
    q, k, queries, keys = clouds()
    align = matcher(distance)
    losses = [
        align(*standardized(scale * q + 3, scale * k + 3, queries, keys), queries, keys)
        for scale in (1.0, 0.1, 10.0)
    ]
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(losses[2], losses[0])
    # So the gradient has no part along the points themselves, which would shrink or grow them.
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    align(*standardized(scale * q, scale * k, queries, keys), queries, keys).sum().backward()
    assert abs(float(scale.grad)) < 1e-6


def test_standardized_points_have_mean_0_and_mean_square_1() -> None:
    q, k, queries, keys = clouds()
    q, k = standardized(5 * q, 5 * k, queries, keys)
    for row, length in ((0, 7), (1, 5)):
        both = torch.cat([q[row, :, :length], k[row, :, :length]], dim=1)
        torch.testing.assert_close(both.mean(dim=1), torch.zeros(2, 4, dtype=torch.float64))
        torch.testing.assert_close(both.square().mean(dim=(1, 2)), torch.ones(2).double())


def test_a_low_temperature_makes_the_plan_of_ct_sharp() -> None:
    """The limit is the cost of the key (query) with the highest affinity."""
    q, k, queries, keys = clouds(batch=2)
    sharp = matcher("ct", ct_temperature=1e-4)
    affinity = sharp.navigator(q) @ sharp.navigator(k).transpose(2, 3)
    cost = 1 - F.cosine_similarity(
        sharp.critic(q)[..., None, :], sharp.critic(k)[..., None, :, :], -1
    )
    to_key = cost[0].gather(-1, affinity[0].argmax(-1, keepdim=True)).mean(dim=(1, 2))
    to_query = cost[0].gather(-2, affinity[0].argmax(-2, keepdim=True)).mean(dim=(1, 2))
    found = sharp(q, k, queries, keys)[0]
    torch.testing.assert_close(found, (to_key + to_query) / 2, atol=1e-6, rtol=1e-6)


def test_the_sum_over_heads_is_the_mean_times_their_number() -> None:
    found = []
    for heads in ("mean", "sum"):
        model = zoo.build("roberta_alignment", alignment="ot", alignment_heads=heads).train()
        zoo.run(model, "roberta", zoo.sentences(6, 4), None)
        losses = [loss for name, loss in take_losses(model) if name == "align"]
        found.append(float(losses[0].reduced(1)))
    assert found[1] == pytest.approx(2 * found[0])


def test_the_recipe_of_the_paper() -> None:
    settings = Alignment(distance="gan", recipe="paper").resolved()
    assert (settings.through, settings.scale_free) == ("model", "no")
    assert (settings.gan_blind, settings.gan_penalty, settings.gan_rate) == (True, 0.0, 1.0)
    assert settings.ct_temperature == 1.0
    assert Alignment(distance="gan").resolved() == Alignment(distance="gan")


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_euclidean_ot_converges_at_its_defaults(scale: float) -> None:
    """The rows of the plan have the masses p_Q; the columns are exact by construction."""
    q, k, queries, keys = clouds(tokens=60, dim=32, shift=0.3)
    defaults = Alignment(distance="ot", cost="euclidean")
    align = matcher("ot", cost="euclidean")
    q, k = standardized(scale * q, scale * k, queries, keys)
    cost = euclidean_cost(q, k)
    cost = cost / mean_cost(cost, queries, keys)
    plan = sinkhorn(cost, queries.mass, keys.mass, defaults.ot_epsilon, defaults.ot_iterations)
    error = (plan.sum(-1) - queries.mass).abs().sum(-1).max()
    assert error < 1e-2
    torch.testing.assert_close(align(q, k, queries, keys), (cost * plan).sum(dim=(-2, -1)))


def test_collapsed_points_are_recognised_at_any_scale() -> None:
    mass = torch.full((50,), 1 / 50, dtype=torch.float64)
    points = torch.randn(2, 50, 4, dtype=torch.float64)
    for scale in (1e-3, 1.0, 1e3):
        alive, narrow = scale * (points + 1), scale * (0.01 * points + 1)
        assert (relative_spread(alive, mass) > COLLAPSED).all()
        assert (relative_spread(narrow, mass) < COLLAPSED).all()
