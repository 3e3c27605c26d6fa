"""stochattn-evaluate and the report page show the meters of every checkpoint, plain ones too."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import evaluated
import runner
import sizes
from fairseq_stochattn.analysis import meters, report_evaluation
from fairseq_stochattn.analysis.heads import head_distances, recorded_heads, show_heads
from fairseq_stochattn.analysis.loading import DataSelection, load_batches, load_models
from fairseq_stochattn.analysis.metric_labels import METER_LABELS
from fairseq_stochattn.commands import evaluate
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.methods.head_diversity import parameter_cosine
from fairseq_stochattn.tasks.kinds import question_of

HEADS = {"head_cosine", "feature_cosine", "dist_over_norm"}
CLOUDS = {"mmd", "key_spread", "query_spread"}
BOTH_SITES = {f"{name}_{site}" for name in CLOUDS for site in ("encoder", "decoder")}


def trained(data: Path, folder: Path, *flags: object) -> Path:
    more = ("--max-update", 2, "--disable-validation")
    runner.train(data, folder, *flags, *more)
    return folder / "checkpoint_last.pt"


def test_evaluate_measures_bayesian_adversarial_and_dropped_attention(
    classification_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise, masks and harm where the model has them; heads, keys and queries in all models."""
    shared = (*sizes.ROBERTA, *sizes.CLASSIFICATION, "--criterion", "attention_losses")
    first = trained(
        classification_data, tmp_path / "first", "--arch", "roberta_babn", *shared,
        "--attention", "babn,asa",
    )  # fmt: skip
    second = trained(
        classification_data, tmp_path / "second", "--arch", "roberta_attendout", *shared
    )
    out = tmp_path / "evaluation.json"
    flags = ("--samples", 2, "--cpu", "--json", out, "--limit", 40)
    given = (classification_data, "--path", first, second, *flags)
    assert evaluate.main([str(x) for x in given]) == 0
    content = json.loads(out.read_text())
    one, two = (entry["meters"] for entry in content["checkpoints"])
    assert set(one) == HEADS | CLOUDS | {"noise", "divergence_ratio", "masked_share"}
    assert set(two) == HEADS | CLOUDS | {"harm_correlation"}
    assert 0 < one["noise"] < 2
    assert 0.03 < one["masked_share"] < 0.3  # starts near 0.1
    assert one["divergence_ratio"] > 0
    assert -1 <= two["harm_correlation"] <= 1
    printed = capsys.readouterr().out
    for name in set(one) | set(two):
        label = METER_LABELS[name].label
        (line,) = (x for x in printed.splitlines() if x.startswith(f"{label}  "))
        assert ("–" in line) == (name not in one or name not in two)


@pytest.fixture(scope="module")
def translator(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of plain fairseq."""
    folder = tmp_path_factory.mktemp("plain")
    return trained(translation_data, folder, "--arch", "transformer", *sizes.TRANSFORMER)


def test_meters_of_a_plain_translation_model_equal_their_definitions(
    translator: Path, translation_data: Path
) -> None:
    """The values follow from the parameters and from the data in one large batch."""
    (model,), task, _ = load_models([str(translator)], str(translation_data), {})
    batches = load_batches(task, [model], DataSelection(str(translation_data), limit=16))
    (batch,) = batches
    question = question_of(task)
    with torch.no_grad():
        before = question.features(model, batch)
    found = meters.measure(model, question, batches, max_tokens=10_000)
    assert set(found) == HEADS | CLOUDS | BOTH_SITES
    with torch.no_grad():
        assert torch.allclose(question.features(model, batch), before, atol=1e-6)
    for name in CLOUDS:
        by_site = [found[f"{name}_{site}"] for site in ("encoder", "decoder")]
        assert found[name] == pytest.approx(sum(by_site) / 2)
    groups = find_heads(show_heads(model))
    for group in groups:
        for parts in group.parameters.values():
            parts[:] = [part for part in parts if part.dim() > 1]  # without biases
    assert found["head_cosine"] == pytest.approx(parameter_cosine(groups).item(), abs=1e-6)
    norms = []
    with torch.no_grad(), ExitStack() as hooks:
        for group in groups:
            record = recorded_heads(group, lambda z: norms.append(z.norm(dim=-1).mean().item()))
            hooks.enter_context(record)
        distances = head_distances(groups, lambda: question.features(model, batch))
    ratios = [distance / norm for distance, norm in zip(distances, norms, strict=True)]
    assert found["dist_over_norm"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)


def test_losses_and_divergences_do_not_depend_on_slices(
    translation_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of examples add up to the loss of the whole batch, however they are sliced."""
    flags = ("--arch", "transformer_asa", *sizes.TRANSFORMER, "--criterion", "asa")
    flags = (*flags, "--asa-initial-share", 0.5, "--asa-lr-multiplier", 1)
    checkpoint = trained(translation_data, tmp_path, *flags)
    (model,), task, _ = load_models([str(checkpoint)], str(translation_data), {})
    batches = load_batches(task, [model], DataSelection(str(translation_data), limit=8))
    (batch,), question = batches, question_of(task)
    with torch.no_grad():
        found = meters.loss_by_example(question, model, batch)
        logits = model(**batch["net_input"])[0]
        log_p = logits.log_softmax(dim=-1).gather(-1, batch["target"][..., None])[..., 0]
        expected = -(log_p * batch["target"].ne(task.target_dictionary.pad())).sum(dim=1)
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
        whole = meters.divergence(question, model, batch)
        assert whole == 0  # without a probe, masks act in training only
        measured = meters.measure(model, question, batches, max_tokens=10_000)
        monkeypatch.setattr(meters, "ELEMENTS", 100)
        sliced = meters.loss_by_example(question, model, batch)
        assert sliced.tolist() == pytest.approx(found.tolist())
        again = meters.measure(model, question, batches, max_tokens=10_000)
    assert again == pytest.approx(measured, rel=1e-4)


def test_examples_are_spread_over_the_data(
    translator: Path, translation_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the shortest to the longest, in batches that fit into --max-tokens."""
    monkeypatch.setattr(meters, "EXAMPLES", 6)
    (model,), task, _ = load_models([str(translator)], str(translation_data), {})
    batches = load_batches(task, [model], DataSelection(str(translation_data), batch_size=5))
    order = [int(index) for part in batches.parts for index in part]
    assert len(order) > 12
    longest = max(batches.dataset.num_tokens(index) for index in order)
    found = list(meters.some_batches(batches, max_tokens=2 * longest))
    assert [len(batch["id"]) for batch in found] == [2, 2, 2]
    chosen = [
        order.index(int(x))
        for batch in found
        for x in sorted(batch["id"].tolist(), key=order.index)
    ]
    assert (chosen[0], chosen[-1]) == (0, len(order) - 1)
    assert max(b - a for a, b in pairwise(chosen)) <= len(order) / 4


def test_the_page_shows_meters_in_the_order_of_the_table() -> None:
    found = evaluated.evaluation()
    for entry in found["checkpoints"]:  # without figures, which take seconds to draw
        entry |= dict.fromkeys(("reliability", "risk_coverage", "out_of_domain"))
    assert "Meters" not in report_evaluation.metrics(found)
    found["checkpoints"][0]["meters"] = {"new_meter": 0.5, "divergence_ratio": 3.25, "noise": 0.21}
    page = report_evaluation.metrics(found)
    shown = re.findall(r'data-label="meter">([^<]*)', page)
    assert shown == ["noise", "divergence, masks / random masks", "new meter"]
    assert "3.25" in page
    assert "higher is better" in page
