"""stochattn-evaluate through real checkpoints of every task: its figures, its files, its errors."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import commands
import sizes
from fairseq_stochattn.analysis import answering, evaluate_command, uncertainty
from fairseq_stochattn.analysis.translations import Translation, compare
from fairseq_stochattn.loading import DataSelection, load_batches, load_models
from fairseq_stochattn.sampling import sampled_attention

CLASSIFIER = (*sizes.ROBERTA, *sizes.CLASSIFICATION)


def run(data: Path, *checkpoints: Path, more: tuple = ()) -> int:
    given = (data, "--path", *checkpoints, "--cpu", *more)
    return evaluate_command.main([str(x) for x in given])


def evaluate(data: Path, *checkpoints: Path, more: tuple = ()) -> dict:
    out = checkpoints[0].parent / "evaluation.json"
    assert run(data, *checkpoints, more=("--force", "--json", out, *more)) == 0
    return json.loads(out.read_text())


def train(data: Path, folder: Path, arch: str, *flags: object) -> tuple[Path, dict]:
    """A checkpoint, and what fairseq has logged of its validation."""
    output = commands.train(data, folder, "--arch", arch, *flags)
    return folder / "checkpoint_last.pt", output.stats["valid"][-1]


@pytest.fixture(scope="module")
def classifier(classification_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = (*CLASSIFIER, "--dropout", 0.1, "--max-update", 6)
    folder = tmp_path_factory.mktemp("classifier")
    return train(classification_data, folder, "roberta_babn", *flags)[0]


@pytest.fixture(scope="module")
def translator(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = (*sizes.TRANSFORMER, "--max-update", 5)
    return train(translation_data, tmp_path_factory.mktemp("b"), "transformer_babn", *flags)[0]


TASKS = {
    "translation": ("translation_data", "lstm_bam", (*sizes.LSTM, "--bam-k", 2)),
    "language_modeling": ("lm_data", "transformer_lm_babn", sizes.TRANSFORMER_LM),
    "masked_lm": ("lm_data", "roberta_babn", (*sizes.ROBERTA, *sizes.MASKED_LM)),
    "sentence_prediction": ("classification_data", "roberta_babn", CLASSIFIER),
    "token_tagging": ("tagging_data", "roberta_babn", (*sizes.ROBERTA, *sizes.TAGGING)),
    "sentence_ranking": ("choice_data", "roberta_babn", (*sizes.ROBERTA, *sizes.CHOICE)),
}
MEASURES = {
    *("accuracy", "nll", "brier", "ece", "oe", "pavpu", "aurc"),
    *("predictive_entropy", "expected_entropy", "mutual_information"),
}


@pytest.mark.parametrize("task", TASKS)
def test_nll_is_what_fairseq_validates(
    task: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With the mean attention; and its samples disagree."""
    fixture, arch, flags = TASKS[task]
    data = request.getfixturevalue(fixture)
    checkpoint, logged = train(data, tmp_path / "run", arch, *flags, "--max-update", 5)
    more = ("--no-bleu", "--seed", 3)  # as in training, for the masks
    mean = evaluate(data, checkpoint, more=("--samples", 0, *more))
    sampled = evaluate(data, checkpoint, more=("--samples", 4, *more))
    assert mean["task"] == task
    (first,), (second,) = mean["checkpoints"], sampled["checkpoints"]
    assert first["metrics"]["nll"] == pytest.approx(float(logged["valid_loss"]), abs=0.0011)
    if "valid_accuracy" in logged:
        assert first["metrics"]["accuracy"] == pytest.approx(float(logged["valid_accuracy"]), 0.01)
    tokens = task in ("translation", "language_modeling", "masked_lm")
    assert set(first["metrics"]) == MEASURES | ({"perplexity"} if tokens else set())
    assert (first["samples"], second["samples"]) == (0, 4)
    assert first["metrics"]["mutual_information"] == 0 < second["metrics"]["mutual_information"]
    assert second["metrics"]["nll"] == pytest.approx(first["metrics"]["nll"], abs=0.1)
    assert sum(x["count"] for x in second["reliability"]) == second["predictions"]
    for row in second["least_certain"]:
        assert row["text"]
        assert row["prediction"]
    confidences = [row["confidence"] for row in second["least_certain"]]
    assert confidences == sorted(confidences)
    assert len(confidences) == min(20, second["predictions"])


def test_measures_are_those_of_all_probabilities(
    translator: Path, translation_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few positions at a time, no padding: as if (K, N, V) had been held, under the same noise."""
    monkeypatch.setattr(answering, "ELEMENTS", 1000)
    flags = ("--samples", 3, "--max-tokens", 10_000, "--no-bleu", "--seed", 7, "--limit", 20)
    found = evaluate(translation_data, translator, more=flags)["checkpoints"][0]
    (model,), task, _ = load_models([str(translator)], str(translation_data), {})
    batches = load_batches(task, [model], DataSelection(str(translation_data), limit=20))
    (sample,) = batches
    torch.manual_seed(7)
    inputs = {k: x.repeat_interleave(3, dim=0) for k, x in sample["net_input"].items()}
    with sampled_attention([model]), torch.no_grad():
        log_probs = model.get_normalized_probs(model(**inputs), log_probs=True)
    real = sample["target"].ne(task.target_dictionary.pad())
    log_probs = log_probs.unflatten(0, (20, 3)).transpose(0, 1)[:, real]  # (K, N, V)
    expected = uncertainty.measures(uncertainty.summarize(log_probs, sample["target"][real]), True)
    assert found["metrics"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert found["examples"] == 20
    assert found["predictions"] == int(real.sum())
    curve = found["risk_coverage"]
    assert curve["risk"][-1] == pytest.approx(1 - expected["accuracy"] / 100)
    assert curve["coverage"][-1] == 1


def test_bleu_is_fairseqs_and_systems_are_compared(
    translation_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Plain fairseq's checkpoints are asked once; each is compared with the first."""
    learnt = (*sizes.TRANSFORMER, "--dropout", 0, "--max-epoch", 15)
    checkpoint, _ = train(translation_data, tmp_path / "learnt", "transformer", *learnt)
    flags = ("--gen-subset", "valid", "--beam", 3, "--scoring", "sacrebleu")
    text = commands.generate(translation_data, checkpoint, *flags).text
    bleu = float(re.search(r"BLEU = ([\d.]+)", text).group(1))
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["decoder.layers.1.encoder_attn.out_proj.weight"] *= 0.5
    (tmp_path / "hurt").mkdir()
    other = tmp_path / "hurt" / "checkpoint_last.pt"
    torch.save(state, other)
    capsys.readouterr()
    found = evaluate(translation_data, checkpoint, other, more=("--beam", 3))
    first, second = found["checkpoints"]
    scores = [x["metrics"]["bleu"] for x in (first, second)]
    assert scores[0] == pytest.approx(bleu, abs=0.006)
    assert bleu > 1
    assert first["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert (first["name"], first["arch"], first["samples"]) == ("learnt", "transformer", 0)
    (difference,) = found["comparisons"]
    assert (difference["of"], difference["with"]) == ("hurt", "learnt")
    assert difference["bleu_difference"] == pytest.approx(scores[1] - scores[0])
    assert scores[0] != scores[1]
    assert difference["method"] == "paired bootstrap, 1000 resamples"
    table = capsys.readouterr().out
    assert re.search(rf"^BLEU +{scores[0]:.2f} +{scores[1]:.2f}$", table, re.M)
    assert f"{scores[1] - scores[0]:+.2f} BLEU, p = {difference['p_value']:.4f}" in table


def test_paired_bootstrap_sees_a_difference_where_there_is_one() -> None:
    reference = [f"the {a} {b} runs away ." for a in "abcdef" for b in "uvwxyz"]
    good = [Translation(i, text, text) for i, text in enumerate(reference)]
    bad = [Translation(i, text.replace("runs", "walks"), text) for i, text in enumerate(reference)]
    better, same = compare([bad, good, bad])
    assert better.bleu > 30
    assert better.p_value < 0.01
    assert same == (0, 1)


def test_other_data_is_told_by_its_entropy(
    classifier: Path, classification_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A set without labels or label dictionary; entropies and AUROC are those of its answers."""
    other = tmp_path / "other"
    shutil.copytree(classification_data / "input0", other / "input0")
    more = ("--samples", 3, "--out-of-domain", other, "--out-of-domain-subset", "train")
    found = evaluate(classification_data, classifier, more=(*more, "--limit", 30))
    outside = found["checkpoints"][0]["out_of_domain"]
    assert (outside["data"], outside["split"], outside["examples"]) == (str(other), "train", 30)
    curve = outside["entropy_cdf"]
    assert (curve["in_domain"][-1], curve["out_of_domain"][-1]) == (1, 1)
    # AUROC is the area under (share of inside above, share of outside above) over all thresholds.
    entropies = {}
    for subset in ("valid", "train"):
        flags = ("--gen-subset", subset, "--samples", 0, "--limit", 30)
        rows = evaluate(classification_data, classifier, more=flags)["checkpoints"][0]
        entropies[subset] = rows["metrics"]["predictive_entropy"]
    mean = evaluate(classification_data, classifier, more=(*more[2:], "--samples", 0))
    mean = mean["checkpoints"][0]["out_of_domain"]
    assert mean["auroc"]["mutual_information"] == 0.5  # nothing was sampled
    assert 0 <= outside["auroc"]["entropy"] <= 1
    assert outside["auroc"]["mutual_information"] != 0.5
    assert "AUROC of mutual information" in capsys.readouterr().out
    same = ("--out-of-domain-subset", "train", "--samples", 0)  # of the data itself
    again = evaluate(classification_data, classifier, more=same)["checkpoints"][0]
    assert again["out_of_domain"] == {**mean, "data": str(classification_data)}
