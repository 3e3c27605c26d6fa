"""stochattn-predict: predictions in the order of the data and metrics, for every task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

import labelled
import runner
import sizes
from fairseq_stochattn.analysis.loading import DataSelection, load_batches, load_models
from fairseq_stochattn.analysis.metrics import count_spans
from fairseq_stochattn.commands import predict
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.tasks import labels as predictions
from fairseq_stochattn.uncertainty.sampling import sampled_attention

MODEL = (*sizes.ROBERTA, "--max-update", 6, "--init-token", 0, "--disable-validation")


def run(data: Path, checkpoint: object, *flags: object) -> None:
    assert predict.main([str(x) for x in (data, "--path", checkpoint, "--cpu", *flags)]) == 0


@pytest.fixture
def predicted(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Return a function that runs the command and returns its predictions and its metrics."""

    def call(data: Path, checkpoint: object, *flags: object) -> tuple[list[dict], dict]:
        capsys.readouterr()
        run(data, checkpoint, *flags, "--json", "--output", tmp_path / "predictions.jsonl")
        lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], json.loads(capsys.readouterr().out)

    return call


@pytest.fixture(scope="module")
def classifier(classification_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    flags = ("--arch", "roberta_babn", *MODEL, *sizes.CLASSIFICATION)
    runner.train(classification_data, folder, *flags)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def regressor(regression_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regressor")
    flags = ("--arch", "roberta_deterministic", *MODEL, *sizes.REGRESSION)
    runner.train(regression_data, folder, *flags)
    return folder / "checkpoint_last.pt"


def test_classification(classification_data: Path, classifier: Path, predicted) -> None:
    """The order is that of the data for any batch size; the metrics are those of the lines."""
    found, metrics = predicted(classification_data, classifier, "--batch-size", 7)
    labels = labelled.labels(classification_data, "valid")
    assert [row["id"] for row in found] == list(range(40))
    assert [row["label"] for row in found] == labels
    for row in found:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert max(row["probabilities"], key=row["probabilities"].get) == row["prediction"]
    correct = np.mean([row["label"] == row["prediction"] for row in found])
    assert metrics["accuracy"] == pytest.approx(100 * correct)
    assert set(metrics) == {"subset", "examples", "accuracy", "macro_f1", "matthews"}
    alone, _ = predicted(classification_data, classifier, "--batch-size", 1)
    for row, other in zip(found, alone, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=2e-5)


def test_each_line_belongs_to_its_sentence(
    classification_data: Path, classifier: Path, predicted
) -> None:
    """The model predicts the same for each sentence alone."""
    found, _ = predicted(classification_data, classifier)
    (model,), task, _ = load_models([str(classifier)], str(classification_data), {})
    symbols = task.source_dictionary
    sentences = labelled.decoded(classification_data / "input0", "valid")
    for row, sentence in zip(found, sentences, strict=True):
        tokens = torch.cat([torch.tensor([0]), symbols.encode_line(sentence).long()])
        head = "sentence_classification_head"
        logits, _ = model(tokens[None], classification_head_name=head)
        probabilities = logits[0].softmax(dim=0).tolist()
        assert list(row["probabilities"].values()) == pytest.approx(probabilities, abs=2e-5)


def test_accuracy_equals_that_of_fairseq_validate(
    choice_data: Path, chooser_checkpoint: Path, tagging_data: Path, tagger_checkpoint: Path,
    predicted,
) -> None:  # fmt: skip
    """For multiple choice and tagging, with models that have learnt the task."""
    cases = (
        (choice_data, chooser_checkpoint, "sentence_ranking", "accuracy"),
        (tagging_data, tagger_checkpoint, "token_tagging", "accuracy"),
        (tagging_data, tagger_checkpoint, "token_tagging", "f1"),
    )
    for data, checkpoint, task, name in cases:
        _, metrics = predicted(data, checkpoint)
        (row,) = runner.validate(data, checkpoint, "--task", task).stats["valid"]
        assert metrics[name] == pytest.approx(float(row[f"valid_{name}"]), abs=0.051)
        assert metrics[name] > 90


def test_multiple_choice(choice_data: Path, chooser_checkpoint: Path, predicted) -> None:
    found, _ = predicted(choice_data, chooser_checkpoint)
    rows = labelled.rows(choice_data, "valid")
    assert [str(row["label"]) for row in found] == [row[-1] for row in rows]
    for row, (context, *options, _) in zip(found, rows, strict=True):
        assert row["probabilities"][row["prediction"]] == max(row["probabilities"])
        assert len(row["probabilities"]) == 4
        if row["prediction"] == row["label"]:
            assert options[row["prediction"]] == context.split()[0]
    unlabelled, metrics = predicted(choice_data, chooser_checkpoint, "--gen-subset", "test")
    assert metrics == {"subset": "test", "examples": 40}
    assert not any("label" in row for row in unlabelled)
    texts = labelled.rows(choice_data, "test")
    correct = [
        o[row["prediction"]] == c.split()[0]
        for row, (c, *o, _) in zip(unlabelled, texts, strict=True)
    ]
    assert np.mean(correct) > 0.8


def test_tagging(tagging_data: Path, tagger_checkpoint: Path, predicted, tmp_path: Path) -> None:
    """One tag per word; without labels one per subword, equal at the beginning of words."""
    found, metrics = predicted(tagging_data, tagger_checkpoint, "--gen-subset", "test")
    labels = [row[1].split() for row in labelled.rows(tagging_data, "test")]
    gold = [[tag for tag in row if tag != "<ignore>"] for row in labels]
    assert [row["label"] for row in found] == gold
    counts = count_spans(gold, [row["prediction"] for row in found])
    assert metrics["f1"] == pytest.approx(100 * counts.f1, abs=0.01)
    flat = [[tag for row in found for tag in row[name]] for name in ("label", "prediction")]
    assert metrics["accuracy"] == pytest.approx(100 * accuracy_score(*flat), abs=0.01)
    bare = tmp_path / "bare"
    shutil.copytree(tagging_data, bare)
    for end in ("bin", "idx"):
        (bare / "label" / f"test.{end}").unlink()
    subwords, metrics = predicted(bare, tagger_checkpoint, "--gen-subset", "test")
    assert set(metrics) == {"subset", "examples"}
    for row, other, tags in zip(subwords, found, labels, strict=True):
        assert len(row["prediction"]) == len(row["probabilities"]) == len(tags)
        first = [p for p, tag in zip(row["prediction"], tags, strict=True) if tag != "<ignore>"]
        assert first == other["prediction"]


def test_regression(regression_data: Path, regressor: Path, predicted) -> None:
    found, metrics = predicted(regression_data, regressor)
    labels = [float(x) for x in labelled.labels(regression_data, "valid")]
    assert [row["label"] for row in found] == pytest.approx(labels)
    pearson = np.corrcoef(labels, [row["prediction"] for row in found])[0, 1]
    assert metrics["pearson"] == pytest.approx(100 * pearson, abs=0.01)
    assert "probabilities" not in found[0]
    unlabelled, _ = predicted(regression_data, regressor, "--gen-subset", "test")
    assert [row["prediction"] for row in unlabelled] == [row["prediction"] for row in found]


def test_samples_are_averaged(classification_data: Path, classifier: Path, predicted) -> None:
    """Probabilities are the mean over K copies in one pass; the same seed gives the same."""
    flags = ("--samples", 3, "--batch-size", 64, "--seed", 5)
    found, _ = predicted(classification_data, classifier, *flags)
    again, _ = predicted(classification_data, classifier, *flags)
    mean, _ = predicted(classification_data, classifier)
    assert found == again
    assert found != mean
    (model,), task, _ = load_models([str(classifier)], str(classification_data), {})
    (batch,) = load_batches(task, [model], DataSelection(str(classification_data)))
    torch.manual_seed(5)
    head = {"classification_head_name": "sentence_classification_head"}
    copies = batch["net_input"]["src_tokens"].repeat_interleave(3, dim=0)
    with sampled_attention([model]), torch.no_grad():
        samples = model(copies, **head)[0].softmax(dim=-1).view(40, 3, -1)
    for number, row in zip(batch["id"].tolist(), samples.mean(dim=1), strict=True):
        expected = list(found[number]["probabilities"].values())
        assert row.tolist() == pytest.approx(expected, abs=1e-5)
    assert not torch.equal(samples[:, 0], samples[:, 1])


def test_an_ensemble_averages_probabilities(
    classification_data: Path, classifier: Path, predicted, tmp_path: Path
) -> None:
    flags = ("--arch", "roberta_deterministic", *MODEL, *sizes.CLASSIFICATION, "--seed", 9)
    runner.train(classification_data, tmp_path / "other", *flags)
    other = tmp_path / "other" / "checkpoint_last.pt"
    single = [predicted(classification_data, path)[0] for path in (classifier, other)]
    both, _ = predicted(classification_data, f"{classifier}:{other}")
    for rows in zip(*single, both, strict=True):
        first, second, mean = (np.array(list(row["probabilities"].values())) for row in rows)
        assert mean == pytest.approx((first + second) / 2, abs=1e-5)


def test_a_failed_run_leaves_the_output_file_unchanged(
    classification_data: Path, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("before")
    calls = []

    def failing(*args: object):
        calls.append(args)
        if len(calls) > 2:
            raise RuntimeError("out of memory")
        return predictions.predict(*args)

    monkeypatch.setattr(predict, "predict", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(classification_data, classifier, "--batch-size", 8, "--output", output)
    assert output.read_text() == "before"
    assert list(tmp_path.iterdir()) == [output]


def test_metrics_are_printed_as_text(classification_data: Path, classifier: Path, capsys) -> None:
    run(classification_data, classifier)
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["examples"] == "40"
    assert 0 <= float(lines["accuracy"]) <= 100


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--gen-subset", "nowhere"), "no nowhere set in"),
        (("--output", "no/such/folder/x"), "no/such/folder/x: its parent directory does not exist"),
        (("--samples", -1), "--samples must not be negative"),
        (("--model-overrides", "oops"), "oops is not a dictionary"),
        (("--model-overrides", "{'max_positions': 4}"), "does not fit"),
    ],
)
def test_bad_flags(
    flags: tuple, complaint: str, classification_data: Path, classifier: Path
) -> None:
    with pytest.raises(UsageError, match=complaint) as error:
        run(classification_data, classifier, *flags)
    assert "\n" not in str(error.value)


def test_checkpoints_that_do_not_fit_the_data(
    lm_data: Path, classification_data: Path, classifier: Path, regressor: Path,
    tagging_data: Path, tagger_checkpoint: Path, chooser_checkpoint: Path, choice_data: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Another task, other labels, other words, a missing dictionary, attention without samples."""
    lm = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.MASKED_LM, "--max-update", 1)
    runner.train(lm_data, tmp_path / "lm", *lm, "--disable-validation")
    few = tmp_path / "few"
    shutil.copytree(tagging_data, few)
    tags = (few / "label" / "dict.txt").read_text().splitlines(keepends=True)
    (few / "label" / "dict.txt").write_text("".join(tags[2:]))
    none = tmp_path / "none"
    shutil.copytree(classification_data, none)
    (none / "label" / "dict.txt").unlink()
    two = tmp_path / "two"
    shutil.copytree(classification_data, two)
    (two / "label" / "dict.txt").write_text("ka 1\nlo 1\n")
    long = tmp_path / "long"
    shutil.copytree(classification_data, long)
    for end in ("bin", "idx"):
        shutil.copy(long / "input0" / f"valid.{end}", long / "label" / f"valid.{end}")
    cases = [
        (long, classifier, (), "valid set in .* does not fit this task"),
        (lm_data, tmp_path / "lm" / "checkpoint_last.pt", (), "MaskedLMTask, which predicts no"),
        (few, tagger_checkpoint, (), "has no head for the labels in"),
        (two, classifier, (), "fewer than the 5 classes"),
        (none, classifier, (), "does not fit"),
        (choice_data, tagger_checkpoint, (), "does not exist|does not fit"),
        (tagging_data, chooser_checkpoint, (), "does not fit"),
        (tmp_path / "nothing", classifier, (), "does not exist"),
        (classification_data, tmp_path / "nothing.pt", (), "nothing.pt does not exist"),
        (choice_data, chooser_checkpoint, ("--samples", 2), "is not random"),
    ]
    for data, checkpoint, flags, complaint in cases:
        with pytest.raises(UsageError, match=complaint) as error:
            run(data, checkpoint, *flags)
        assert "\n" not in str(error.value)


def test_too_long_examples_are_an_error_or_truncated(
    classification_data: Path, tmp_path: Path, predicted
) -> None:
    flags = ("--arch", "roberta_deterministic", *MODEL, *sizes.CLASSIFICATION)
    cut = ("--max-positions", 6, "--shorten-method", "truncate")
    runner.train(classification_data, tmp_path, *flags, *cut)
    path = tmp_path / "checkpoint_last.pt"
    assert len(predicted(classification_data, path)[0]) == 40
    with pytest.raises(UsageError, match=r"tokens, the model takes 6: add --model-overrides"):
        run(classification_data, path, "--model-overrides", "{'shorten_method': 'none'}")


def test_metrics_equal_those_of_fairseqs_validation(
    regression_data: Path, classification_data: Path, tmp_path: Path, predicted
) -> None:
    """fairseq logs the same metrics for our archs with a criterion that wraps its own."""
    common = ("--arch", "roberta_babn", *sizes.ROBERTA, "--max-update", 4)
    report = ("--criterion", "elbo", "--report-pearson-and-spearman")
    output = runner.train(regression_data, tmp_path / "r", *common, *sizes.REGRESSION, *report)
    _, metrics = predicted(regression_data, tmp_path / "r" / "checkpoint_last.pt")
    for name in ("pearson", "spearman"):
        logged = float(output.stats["valid"][-1][f"valid_{name}"])
        assert metrics[name] == pytest.approx(logged, abs=0.06)
    digits = tmp_path / "digits"
    shutil.copytree(classification_data, digits)
    names = (digits / "label" / "dict.txt").read_text().splitlines()
    numbers = [f"{i} 1\n" for i in range(len(names))]  # fairseq computes this metric from numbers
    (digits / "label" / "dict.txt").write_text("".join(numbers))
    report = (*sizes.CLASSIFICATION, "--criterion", "elbo", "--report-mcc")
    output = runner.train(digits, tmp_path / "c", *common, *report)
    _, metrics = predicted(digits, tmp_path / "c" / "checkpoint_last.pt")
    logged = float(output.stats["valid"][-1]["valid_mcc"])
    assert metrics["matthews"] == pytest.approx(logged, abs=0.06)
