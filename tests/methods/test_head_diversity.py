"""Head diversity: formulas against loops, selection of heads, and the criterion in training."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import runner
import sizes
import zoo
from fairseq_stochattn.analysis.heads import head_distances
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.head_hooks import HasHeadHooks
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.core.losses import collecting_losses
from fairseq_stochattn.criterions.head_diversity import HeadDiversityCriterion
from fairseq_stochattn.methods.head_diversity import (
    HeadDiversity,
    frobenius,
    mean_cosine,
    mean_distance,
)
from fairseq_stochattn.models.method_flags import settings_flags
from precision import PRECISIONS, SGD, assert_same_training, one_length

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
EMPTY = torch.full((9,), zoo.PAD)
KINDS = ("disagreement", "cosine", "frobenius")


def heads(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.double, generator=generator)


def cosine_by_loops(x: Tensor) -> float:
    """The mean cosine of heads (H, d) over unordered pairs, as in the papers."""
    pairs = list(itertools.combinations(x.double(), 2))
    return sum(float(a @ b / (a.norm() * b.norm())) for a, b in pairs) / len(pairs)


def test_formulas_equal_loops() -> None:
    x, a = heads(2, 4, 6), heads(2, 4, 6).softmax(dim=-1)
    for row in range(2):
        assert mean_cosine(x)[row].item() == pytest.approx(cosine_by_loops(x[row]), rel=1e-12)
        distances = [(p - q).square().sum().sqrt() for p, q in itertools.combinations(x[row], 2)]
        assert mean_distance(x)[row].item() == pytest.approx(sum(distances).item() / 6, rel=1e-12)
        penalty = 0.0
        for i, j in itertools.product(range(4), repeat=2):
            overlap = sum(a[row, i, s] * a[row, j, s] for s in range(6))
            penalty += (overlap.item() - (i == j)) ** 2
        assert frobenius(a)[row].item() == pytest.approx(penalty, rel=1e-12)


def test_orthogonal_identical_and_opposite_heads() -> None:
    apart, alike = torch.eye(4), torch.ones(4, 4)
    found = mean_cosine(torch.stack([apart, alike, 7 * alike]))
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 1.0]))
    assert mean_cosine(torch.tensor([[1.0, 2.0], [-3.0, -6.0]])).item() == pytest.approx(-1)
    # Every head attends to one word: the penalty is 0 if the words differ, else H² − H.
    assert frobenius(apart).item() == 0
    alike = torch.tensor([[1.0, 0.0]] * 4)
    assert frobenius(alike).item() == 12
    assert mean_distance(alike).item() == 0


def test_small_distances_of_long_vectors_are_not_rounded_away() -> None:
    x = torch.full((2, 8), 1000.0)
    x[1, 0] += 0.125
    assert mean_distance(x).item() == 0.125


@pytest.mark.parametrize("function", [mean_cosine, frobenius])
def test_gradients(function: Any) -> None:
    assert torch.autograd.gradcheck(function, heads(2, 3, 5).requires_grad_())
    assert function(heads(2, 3, 5).half()).dtype == torch.float
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = function(heads(2, 3, 5).float())
    assert torch.equal(mixed, function(heads(2, 3, 5).float()))
    zeros = torch.zeros(3, 5, requires_grad=True)
    function(zeros).backward()
    assert zeros.grad.isfinite().all()


def criterion(diversity: str = "disagreement", weight: float = 0.5, **flags: Any) -> Any:
    config = {entry.name: entry.default for entry in fields(settings_flags(HeadDiversity))}
    config |= {"diversity": diversity, "diversity_weight": weight, **flags}
    return HeadDiversityCriterion(SimpleNamespace(), _Forward(), Namespace(**config))


class _Forward(nn.Module):
    """Stands in for a task's criterion: ``sample`` is a function that runs the model; loss 0."""

    def forward(self, model: nn.Module, sample: Any, reduce: bool) -> tuple[Tensor, int, dict]:
        sample(model)
        return torch.zeros(()), 7, {}


def transformer(**batch: Any) -> Any:
    return lambda model: zoo.run(model, "transformer", SOURCES, TARGETS, **batch)


def logged(model: nn.Module, sample: Any, **flags: Any) -> dict[str, float]:
    """The logged terms per sample."""
    _, _, log = criterion(**flags)(model, sample)
    return {k.removeprefix("attention/"): float(v) / 7 for k, v in log.items()}


def outputs_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The inputs (T, B, C) of all output projections, recorded by torch's own hooks."""
    found: list[tuple[str, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args, name=name: found.append((name, args[0])))
        for name, module in model.named_modules()
        if name.endswith("attn.out_proj")
    ]
    transformer()(model)
    for hook in hooks:
        hook.remove()
    return found


SELECTIONS = {
    "all": ({}, lambda name: True),
    "encoder": ({"diversity_sites": "encoder"}, lambda name: name.startswith("encoder")),
    "cross, last": (
        {"diversity_sites": "cross", "diversity_layers": "last"},
        lambda name: name == "decoder.layers.2.encoder_attn.out_proj",
    ),
    "first": ({"diversity_layers": "first"}, lambda name: ".0." in name),
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_disagreement_of_a_transformer(selection: str) -> None:
    """The mean over pairs of heads, non-padding tokens and selected layers; Dist likewise."""
    flags, chosen = SELECTIONS[selection]
    model = zoo.build("transformer_deterministic").eval()
    cosines, distances = [], []
    for name, out in outputs_of(model):
        rows = SOURCES if name.startswith("encoder") else TARGETS
        for b, t in [(b, t) for b, row in enumerate(rows) for t in range(len(row))]:
            if chosen(name):
                z = out[t, b].view(2, 8)
                cosines.append(cosine_by_loops(z))
                distances.append((z[0] - z[1]).norm().item())
    found = logged(model, transformer(), log_dist=True, **flags)
    assert found["disagreement"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)
    assert found["dist"] == pytest.approx(sum(distances) / len(distances), abs=1e-6)
    assert found["disagreement_weight"] == 0.5
    assert found["objective"] == pytest.approx(0.5 * found["disagreement"])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_count(kind: str) -> None:
    model = zoo.build("transformer_deterministic").eval()
    found = [
        logged(model, transformer(**batch), diversity=kind, log_dist=True)
        for batch in ({}, {"width": 20}, {"width": 20, "left": True})
    ]
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-5)


def test_cosine_of_parameters_equals_loops_also_on_plain_archs() -> None:
    """Every projection of every layer, with its bias, has one cosine between its two heads."""
    model = zoo.build("transformer")
    values = []
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            joined = torch.cat([module.weight, module.bias[:, None]], dim=1)  # (H·d, in + 1)
            values.append(cosine_by_loops(joined.view(2, -1)))
    assert len(values) == 9 * 3
    found = logged(model, transformer(), diversity="cosine")
    assert found["cosine"] == pytest.approx(sum(values) / 27, abs=1e-6)
    ours = zoo.build("transformer_deterministic")
    assert logged(ours, transformer(), diversity="cosine") == pytest.approx(found)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "q_proj"):
                for p in (*module.q_proj.parameters(), *module.k_proj.parameters()):
                    p.copy_(torch.cat([p[:8], p[:8]]))
                for p in module.v_proj.parameters():
                    p.copy_(torch.cat([p[:8], -p[:8]]))
    alike = logged(model, transformer(), diversity="cosine")["cosine"]
    assert alike == pytest.approx((1 + 1 - 1) / 3)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_classifier_counts_sentences(pairs: bool) -> None:
    """‖AAᵀ − I‖² and the cosines of Z are means over the non-empty sentences."""
    model = zoo.classifier(sentence_pairs=pairs).eval()
    rows = [torch.cat([a, b]) for a, b in zip(SOURCES, TARGETS, strict=True)] if pairs else SOURCES
    extra = model(zoo.pad(rows))[1]
    expected = {
        "frobenius": [frobenius(a).item() for a in extra["attention"]],
        "disagreement": [cosine_by_loops(z) for z in extra["head_features"]],
        "dist": [mean_distance(z).item() for z in extra["head_features"]],
    }
    for kind in ("frobenius", "disagreement"):
        found = logged(
            model,
            lambda model: zoo.classify(model, [*rows, EMPTY], width=20),
            diversity=kind,
            log_dist=True,
        )
        for name in (kind, "dist"):
            count = len(expected[name])
            assert count == (2 if pairs else 1) * len(rows)
            assert found[name] == pytest.approx(sum(expected[name]) / count, abs=1e-5)


MODELS = {
    "transformer_deterministic": transformer(),
    "self_attentive": lambda model: zoo.classify(model, SOURCES),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", MODELS)
def test_a_step_against_the_gradient_makes_heads_differ(arch: str, kind: str) -> None:
    """The objective decreases by the step times the squared norm of the gradient."""
    model = zoo.classifier() if arch == "self_attentive" else zoo.build(arch)
    model = model.double()
    before, _, _ = criterion(kind)(model, MODELS[arch])
    before.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    squared_norm = sum(p.grad.square().sum().item() for p in parameters)
    assert squared_norm > 0
    step = 1e-4 / squared_norm**0.5
    with torch.no_grad():
        for p in parameters:
            p -= step * p.grad
        after, _, _ = criterion(kind)(model, MODELS[arch])
    assert (after - before).item() == pytest.approx(-step * squared_norm, rel=0.02)


def test_nothing_is_kept_after_the_criterion() -> None:
    model = zoo.build("transformer_deterministic")
    hooking = criterion()
    hooking(model, transformer())
    assert hooking.terms == []
    with collecting_losses():
        transformer()(model)
    assert hooking.terms == []
    modules = [module for module in model.modules() if isinstance(module, HasHeadHooks)]
    assert len(modules) == 9
    assert not any(module.head_hooks for module in modules)


def test_criterion_and_analysis_hook_the_same_heads() -> None:
    model = zoo.build("transformer_deterministic").eval()
    groups, found = find_heads(model), {}
    with torch.no_grad():
        alone = head_distances(groups, lambda: transformer()(model))
        both = head_distances(
            groups, lambda: found.update(logged(model, transformer(), log_dist=True))
        )
    assert both == alone
    tokens = [sum(map(len, SOURCES if x.site == "encoder" else TARGETS)) for x in groups]
    mean = sum(d * n for d, n in zip(alone, tokens, strict=True)) / sum(tokens)
    assert found["dist"] == pytest.approx(mean, rel=1e-5)


CLASSIFIER = ("--arch", "self_attentive", *sizes.SELF_ATTENTIVE, *sizes.CLASSIFICATION)
CASES = {
    "disagreement": (
        "translation_data",
        ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--log-dist"),
    ),
    "cosine": ("translation_data", ("--arch", "transformer", *sizes.TRANSFORMER)),
    "frobenius": ("classification_data", (*CLASSIFIER, "--log-dist")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_criterion_in_training(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """objective = task loss + weight · penalty; the penalty decreases, also in fp16."""
    fixture, flags = CASES[kind]
    data = request.getfixturevalue(fixture)
    named = (*flags, "--criterion", "head_diversity", "--diversity", kind, "--diversity-weight", 3)
    named = (*named, "--dropout", 0, "--max-update", 16, "--lr", 0.01, "--no-save")
    half = (*PRECISIONS["fp16"], "--fp16-init-scale", 4, "--max-update", 4)
    found = []
    for more in ((), half):
        output = runner.train(data, tmp_path, *named, *more)
        rows = output.stats["train_inner"]
        for row in rows:
            assert float(row[f"{kind}_weight"]) == 3
            expected = float(row["loss"]) + 3 * float(row[kind]) / math.log(2)
            assert float(row["objective"]) == pytest.approx(expected, abs=1e-2)
        found.append([float(row[kind]) for row in rows])
        assert {f"valid_{kind}", "valid_objective"} <= set(output.stats["valid"][-1])
        assert ("valid_dist" in output.stats["valid"][-1]) == ("--log-dist" in flags)
    assert sum(found[0][-4:]) < 0.95 * sum(found[0][:4])
    assert found[1] == pytest.approx(found[0][:4], rel=0.03, abs=0.01)


@pytest.mark.parametrize("kind", ["disagreement", "cosine"])
def test_accumulation_equals_one_double_batch(
    kind: str, translation_data: Path, tmp_path: Path
) -> None:
    data = one_length(translation_data, tmp_path)
    flags = (*SGD, "--criterion", "head_diversity", "--diversity", kind, "--max-update", 3)
    runner.train(data, tmp_path / "whole", *flags)
    runner.train(data, tmp_path / "halves", *flags, "--batch-size", 32, "--update-freq", 2)
    assert_same_training(tmp_path / "whole", tmp_path / "halves", data)


OURS = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (
            ("--arch", "transformer", *sizes.TRANSFORMER),
            "--diversity disagreement: fairseq's own attention does not expose its heads; use an "
            "arch of this package, e.g. transformer_deterministic",
        ),
        (
            ("--arch", "transformer", *sizes.TRANSFORMER, "--diversity", "cosine", "--log-dist"),
            "--log-dist: fairseq's own attention does not expose",
        ),
        (("--arch", "lstm_deterministic", *sizes.LSTM), "has no attention with heads"),
        ((*OURS, "--diversity-weight", -1), "--diversity-weight must not be negative"),
        ((*OURS, "--diversity-sites", "mind"), "--diversity-sites: unknown site 'mind'"),
        ((*OURS, "--diversity-layers", "7"), "--diversity-layers 7: out of range"),
        ((*OURS, "--decoder-attention-heads", 1), "self_attn has only one head"),
        ((*OURS, "--checkpoint-activations"), "--checkpoint-activations hides the heads"),
    ],
)
def test_bad_flags_are_refused(
    flags: tuple, cause: str, translation_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        runner.train(
            translation_data, tmp_path, *flags, "--criterion", "head_diversity", "--max-update", 1
        )
    assert cause in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_former_name_works_with_a_warning(translation_data: Path, tmp_path: Path) -> None:
    """``--criterion repulsive`` trains like head_diversity and logs one line of warning."""
    flags = (*OURS, "--max-update", 2, "--dropout", 0, "--no-save")
    now, before = (
        runner.train(translation_data, tmp_path, *flags, "--criterion", name)
        for name in ("head_diversity", "repulsive")
    )
    warning = "--criterion repulsive is now called head_diversity"
    assert warning not in now.text
    assert before.text.count(warning) == 1
    for row, expected in zip(before.stats["train_inner"], now.stats["train_inner"], strict=True):
        for name in ("loss", "objective", "disagreement", "disagreement_weight"):
            assert row[name] == expected[name]
