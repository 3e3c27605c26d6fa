"""Dist (the mean distance between heads) and importance of heads equal direct computations."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.heads import (
    head_distances,
    head_diversities,
    head_importances,
    masked_head,
    show_heads,
)
from fairseq_stochattn.analysis.heads_plot import bin_edges
from fairseq_stochattn.core.heads import HeadGroup, by_head, find_heads

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
BACKBONES = ["transformer", "transformer_lm", "roberta"]
every_backbone = pytest.mark.parametrize("backbone", BACKBONES)
# A model of plain fairseq, and the same model with the attention of this package.
both_attentions = pytest.mark.parametrize("suffix", ["", "_deterministic"])


def build(arch: str) -> nn.Module:
    return zoo.build(arch, encoder_attention_heads=4, decoder_attention_heads=4).double().eval()


def run(model: nn.Module, backbone: str) -> Tensor:
    """The output for a padded batch. For a translation model, sources are padded on the left."""
    return zoo.run(model, backbone, SOURCES, TARGETS, left=backbone == "transformer")


def head_outputs(model: nn.Module, backbone: str, index: int) -> dict[str, list[Tensor]]:
    """The output Z_i = A_i V_i (T, d) of every head, for sentence ``index`` without padding."""
    found = {}

    def compute(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, given: dict, _: object) -> None:
            query, key = given["query"][:, 0], given["key"][:, 0]
            q, k, v = module.q_proj(query), module.k_proj(key), module.v_proj(key)
            d, mask = module.head_dim, given.get("attn_mask")
            found[name] = []
            for head in range(module.num_heads):
                rows = slice(head * d, (head + 1) * d)
                logits = q[:, rows] @ k[:, rows].T / math.sqrt(d)
                logits = logits if mask is None else logits + mask
                found[name].append(logits.softmax(dim=-1) @ v[:, rows])

        return hook

    hooks = [
        group.module.register_forward_hook(compute(group.name), with_kwargs=True)
        for group in find_heads(model)
    ]
    with torch.no_grad():
        zoo.run(model, backbone, [SOURCES[index]], [TARGETS[index]])
    for hook in hooks:
        hook.remove()
    return found


@both_attentions
@every_backbone
def test_dist_is_the_mean_over_pairs_of_heads_and_tokens(backbone: str, suffix: str) -> None:
    """Dist on a padded batch equals a loop over single sentences, tokens and pairs of heads."""
    distances: dict[str, list[float]] = {}
    reference = build(backbone)
    for index in range(len(SOURCES)):
        for name, z in head_outputs(reference, backbone, index).items():
            for token in range(len(z[0])):
                for i in range(len(z)):
                    for j in range(i):
                        norm = (z[i][token] - z[j][token]).pow(2).sum().sqrt().item()
                        distances.setdefault(name, []).append(norm)
    model = show_heads(build(f"{backbone}{suffix}"))
    groups = find_heads(model)
    with torch.no_grad():
        found = head_distances(groups, lambda: run(model, backbone))
    expected = [sum(distances[x.name]) / len(distances[x.name]) for x in groups]
    # fairseq computes the softmax of cross-attention in fp32, even if the model has fp64.
    assert found == pytest.approx(expected, rel=1e-7)


@every_backbone
def test_show_heads_changes_no_output(backbone: str) -> None:
    plain, shown = build(backbone), show_heads(build(backbone))
    torch.testing.assert_close(run(shown, backbone), run(plain, backbone), rtol=0, atol=1e-6)
    assert list(shown.state_dict()) == list(plain.state_dict())


def test_lengths_change_dist_but_not_dist_over_norm() -> None:
    """Values that are twice as long double Dist; Dist over norm and both cosines stay."""
    found = []
    for factor in (1.0, 2.0):
        model = show_heads(build("roberta"))
        with torch.no_grad():
            group = find_heads(model)[0]  # the inputs of later layers change
            group.module.v_proj.weight *= factor
            group.module.v_proj.bias *= factor
            found += head_diversities([group], lambda model=model: run(model, "roberta"))
    one, two = found
    assert two.dist == pytest.approx(2 * one.dist, rel=1e-6)
    for name in ("dist_over_norm", "feature_cosine", "head_cosine"):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-6)
        assert getattr(one, name) != 0


def test_dist_of_a_single_head_is_none() -> None:
    model = show_heads(zoo.build("roberta", encoder_attention_heads=1).eval())
    assert head_distances(find_heads(model), lambda: run(model, "roberta")) == [None] * 3


@both_attentions
@every_backbone
def test_masking_zeroes_the_output_of_one_head(backbone: str, suffix: str) -> None:
    """The output equals that of a model in which a hook sets Z_i to zero at the input of W_O."""
    model, reference = build(f"{backbone}{suffix}"), build(f"{backbone}_deterministic")
    whole = run(model, backbone)
    for group, other in zip(find_heads(model), find_heads(reference), strict=True):
        for head in (0, 3):
            d = other.module.head_dim

            def zero(_: nn.Module, args: tuple, columns: slice = slice(head * d, (head + 1) * d)):
                z = args[0].clone()
                z[..., columns] = 0
                return z

            hook = other.module.out_proj.register_forward_pre_hook(zero)
            expected = run(reference, backbone)
            hook.remove()
            with masked_head(group, head):
                found = run(model, backbone)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
            assert not torch.allclose(found, whole, rtol=0, atol=1e-5)
    assert torch.equal(run(model, backbone), whole)


@pytest.mark.parametrize("cause", [ValueError, KeyboardInterrupt, SystemExit])
def test_weights_are_restored_bit_for_bit_after_an_error(cause: type[BaseException]) -> None:
    model = zoo.build("transformer")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    groups, calls = find_heads(model), []

    def score() -> float:
        calls.append(0)
        if len(calls) == 4:
            assert any(not torch.equal(model.state_dict()[name], before[name]) for name in before)
            raise cause
        return 0.0

    with pytest.raises(cause):
        head_importances(groups, score, 0.0)
    assert len(calls) == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def cross_entropy(model: nn.Module, backbone: str) -> Callable[[], float]:
    """A score: the negative cross-entropy with the model's present output as target.

    Any change of the model lowers it by a KL divergence, which is at least 0.
    """
    with torch.no_grad():
        target = run(model, backbone).softmax(dim=-1)

    @torch.no_grad()
    def score() -> float:
        return (target * run(model, backbone).log_softmax(dim=-1)).sum(dim=-1).mean().item()

    return score


def columns_of(group: HeadGroup) -> Tensor:
    """The weight W_O of ``out_proj`` as a view (C, H, d)."""
    return group.module.out_proj.weight.detach().unflatten(1, (group.num_heads, -1))


@both_attentions
def test_importance_is_zero_for_unused_heads_and_positive_for_a_used_head(suffix: str) -> None:
    model = build(f"transformer{suffix}")
    groups = find_heads(model)
    for index, group in enumerate(groups):
        for head in range(group.num_heads):
            if (index, head) != (4, 2):
                columns_of(group)[:, head] = 0
    score = cross_entropy(model, "transformer")
    found = head_importances(groups, score, score())
    assert found[4][2] > 1e-6
    found[4][2] = 0.0
    assert found == [[0.0] * 4] * len(groups)  # exactly


@every_backbone
def test_permuting_heads_permutes_importance_and_keeps_dist(backbone: str) -> None:
    model = show_heads(build(backbone))
    groups, order = find_heads(model), [2, 0, 3, 1]
    score = cross_entropy(model, backbone)
    dist = head_distances(groups, score)
    before = head_importances(groups, score, score())
    with torch.no_grad():
        for group in groups:
            for parameter in (x for found in group.parameters.values() for x in found):
                rows = by_head(parameter, group.num_heads)
                rows.copy_(rows[order])
            columns_of(group).copy_(columns_of(group)[:, order])
    after = head_importances(groups, score, score())
    assert head_distances(groups, score) == pytest.approx(dist, rel=1e-9)
    for one, other in zip(before, after, strict=True):
        assert other == pytest.approx([one[i] for i in order], abs=1e-12)
        assert len(set(one)) == 4


class Pooling(nn.Module):
    """Sentence attention as in Lin et al. 2017, with one output vector per head and sentence."""

    def __init__(self, flat: bool, with_weights: bool) -> None:
        super().__init__()
        self.num_heads, self.flat, self.with_weights = 3, flat, with_weights
        self.scores = nn.Linear(5, 3)

    def head_parameters(self) -> dict[str, list[nn.Parameter]]:
        return {"v": list(self.scores.parameters())}

    def forward(self, hidden: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        weights = self.scores(hidden).softmax(dim=1)  # (B, T, H)
        z = torch.einsum("bth,btd->bhd", weights, hidden)
        z = z.flatten(1) if self.flat else z
        return (z, weights) if self.with_weights else z


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("with_weights", [False, True])
def test_modules_with_head_parameters_are_measured(flat: bool, with_weights: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Pooling(flat, with_weights)).double()
    hidden = torch.randn(4, 7, 5, dtype=torch.double)

    def features() -> Tensor:
        out = model(hidden)
        return (out[0] if with_weights else out).reshape(4, 3, 5)

    (group,) = find_heads(model)
    z = features()
    pairs = [(z[:, i] - z[:, j]).norm(dim=-1).mean().item() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert head_distances([group], features) == [pytest.approx(sum(pairs) / 3)]
    with masked_head(group, 1):
        masked = features()
    assert torch.equal(masked[:, 1], torch.zeros(4, 5))
    assert torch.equal(masked[:, [0, 2]], z[:, [0, 2]])
    assert torch.equal(features(), z)


def test_no_bin_holds_both_positive_and_negative_values() -> None:
    for values in ([-0.3, 0.1, 2.0], [0.5, 1.0], [-1.0, -0.2], [0.0, 0.0]):
        edges = bin_edges(values)
        assert 0.0 in edges
        assert np.histogram(values, edges)[0].sum() == len(values)
        assert np.allclose(np.diff(edges), edges[1] - edges[0])


def test_every_pass_uses_the_same_random_numbers() -> None:
    """Otherwise the importance of an unused head of a stochastic model would not be exactly 0."""

    def valid_step(*_: object) -> tuple[None, int, dict[str, Tensor]]:
        return None, 1, {"loss": torch.rand(())}

    task = SimpleNamespace(valid_step=valid_step)
    batches = [{}, {}]
    first, again, other = (
        Evaluation(nn.Module(), task, nn.Module(), batches, seed, cuda=False).loss()
        for seed in (3, 3, 4)
    )
    assert first == again != other
