"""stochattn-evaluate on trained checkpoints of every task: measures, files and errors."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from scipy import stats

import labelled
import runner
import sizes
from evaluating import evaluate, run, train
from fairseq_stochattn.analysis import answering
from fairseq_stochattn.analysis.evaluate_report import names_of
from fairseq_stochattn.analysis.loading import DataSelection, load_batches, load_models
from fairseq_stochattn.analysis.translations import Translation, compare
from fairseq_stochattn.commands import evaluate as evaluate_command
from fairseq_stochattn.commands import predict
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.uncertainty import measures as uncertainty
from fairseq_stochattn.uncertainty.sampling import sampled_attention

CLASSIFIER = (*sizes.ROBERTA, *sizes.CLASSIFICATION)


@pytest.fixture(scope="module")
def classifier(classification_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = (*CLASSIFIER, "--dropout", 0.1, "--max-update", 6)
    folder = tmp_path_factory.mktemp("classifier")
    return train(classification_data, folder, "roberta_babn", *flags)[0]


@pytest.fixture(scope="module")
def translator(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = (*sizes.TRANSFORMER, "--max-update", 5)
    return train(translation_data, tmp_path_factory.mktemp("b"), "transformer_babn", *flags)[0]


# Task → fixture of the data, arch, flags.
TASKS = {
    "translation": ("translation_data", "lstm_bam", (*sizes.LSTM, "--bam-k", 2)),
    "language_modeling": ("lm_data", "transformer_lm_babn", sizes.TRANSFORMER_LM),
    "masked_lm": ("lm_data", "roberta_babn", (*sizes.ROBERTA, *sizes.MASKED_LM)),
    "sentence_prediction": ("classification_data", "roberta_babn", CLASSIFIER),
    "token_tagging": ("tagging_data", "roberta_babn", (*sizes.ROBERTA, *sizes.TAGGING)),
    "sentence_ranking": ("choice_data", "roberta_babn", (*sizes.ROBERTA, *sizes.CHOICE)),
}
MEASURES = {
    *("accuracy", "nll", "nll_mean_attention", "brier", "ece", "oe", "pavpu", "aurc"),
    *("auroc_errors_entropy", "auroc_errors_mutual_information"),
    *("predictive_entropy", "expected_entropy", "mutual_information", "mutual_information_share"),
}
# Task → the measures that only it has.
OWN_MEASURES = {
    "sentence_prediction": {"macro_f1", "matthews"},
    "token_tagging": {"precision", "recall", "f1"},
    "sentence_ranking": set(),
}


@pytest.mark.parametrize("task", TASKS)
def test_nll_equals_the_validation_loss_of_fairseq(
    task: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """This holds with the mean attention. With samples, the mutual information is positive."""
    fixture, arch, flags = TASKS[task]
    data = request.getfixturevalue(fixture)
    checkpoint, logged = train(data, tmp_path / "run", arch, *flags, "--max-update", 5)
    more = ("--no-bleu", "--seed", 3)  # the seed of training, which the masks depend on
    mean = evaluate(data, checkpoint, more=("--samples", 0, *more))
    sampled = evaluate(data, checkpoint, more=("--samples", 4, *more))
    assert mean["task"] == task
    (first,), (second,) = mean["checkpoints"], sampled["checkpoints"]
    assert first["metrics"]["nll"] == pytest.approx(float(logged["valid_loss"]), abs=0.0011)
    if "valid_accuracy" in logged:
        assert first["metrics"]["accuracy"] == pytest.approx(float(logged["valid_accuracy"]), 0.01)
    assert set(first["metrics"]) == MEASURES | OWN_MEASURES.get(task, {"perplexity"})
    assert (first["samples"], second["samples"]) == (0, 4)
    assert first["metrics"]["mutual_information"] == 0 < second["metrics"]["mutual_information"]
    assert second["metrics"]["nll"] == pytest.approx(first["metrics"]["nll"], abs=0.1)
    assert second["metrics"]["nll"] != second["metrics"]["nll_mean_attention"]
    for found in (first, second):
        central = found["metrics"]["nll_mean_attention"]
        assert central == pytest.approx(first["metrics"]["nll"], rel=1e-5)
    assert sum(x["count"] for x in second["reliability"]) == second["predictions"]
    for row in second["least_certain"]:
        assert row["text"]
        assert row["prediction"]
    confidences = [row["confidence"] for row in second["least_certain"]]
    assert confidences == sorted(confidences)
    assert len(confidences) == min(20, second["predictions"])


def test_slicing_the_probabilities_does_not_change_the_measures(
    translator: Path, translation_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measures of small slices equal those of all probabilities (K, N, V) with the same seed."""
    monkeypatch.setattr(answering, "ELEMENTS", 1000)
    flags = ("--samples", 3, "--max-tokens", 10_000, "--no-bleu", "--seed", 7, "--limit", 20)
    found = evaluate(translation_data, translator, more=flags)["checkpoints"][0]
    (model,), task, _ = load_models([str(translator)], str(translation_data), {})
    batches = load_batches(task, [model], DataSelection(str(translation_data), limit=20))
    (batch,) = batches
    torch.manual_seed(7)
    inputs = {k: x.repeat_interleave(3, dim=0) for k, x in batch["net_input"].items()}
    with sampled_attention([model]), torch.no_grad():
        log_probs = model.get_normalized_probs(model(**inputs), log_probs=True)
    target = batch["target"]
    not_padding = target.ne(task.target_dictionary.pad())
    log_probs = log_probs.unflatten(0, (20, 3)).transpose(0, 1)[:, not_padding]  # (K, N, V)
    with torch.no_grad():
        central = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
    answers = uncertainty.summarize(log_probs, target[not_padding], central[None, not_padding])
    expected = uncertainty.measures(answers, True)
    assert found["metrics"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert found["examples"] == 20
    assert found["predictions"] == int(not_padding.sum())
    curve = found["risk_coverage"]
    assert curve["risk"][-1] == pytest.approx(1 - expected["accuracy"] / 100)
    assert curve["coverage"][-1] == 1


def test_bleu_equals_that_of_fairseq_and_checkpoints_are_compared(
    translation_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Plain fairseq checkpoints are not sampled; later checkpoints are compared with the first."""
    flags = (*sizes.TRANSFORMER, "--dropout", 0, "--max-epoch", 15)
    checkpoint, _ = train(translation_data, tmp_path / "learnt", "transformer", *flags)
    flags = ("--gen-subset", "valid", "--beam", 3, "--scoring", "sacrebleu")
    text = runner.generate(translation_data, checkpoint, *flags).text
    bleu = float(re.search(r"BLEU = ([\d.]+)", text).group(1))
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["decoder.layers.1.encoder_attn.out_proj.weight"] *= 0.5
    (tmp_path / "damaged").mkdir()
    other = tmp_path / "damaged" / "checkpoint_last.pt"
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
    assert (difference["of"], difference["with"]) == ("damaged", "learnt")
    assert difference["bleu_difference"] == pytest.approx(scores[1] - scores[0])
    assert scores[0] != scores[1]
    assert difference["method"] == "paired bootstrap, 1000 resamples"
    table = capsys.readouterr().out
    assert re.search(rf"^BLEU +{scores[0]:.2f} +{scores[1]:.2f}$", table, re.M)
    assert f"{scores[1] - scores[0]:+.2f} BLEU, p = {difference['p_value']:.4f}" in table


def test_paired_bootstrap_finds_a_difference() -> None:
    reference = [f"the {a} {b} runs away ." for a in "abcdef" for b in "uvwxyz"]
    good = [Translation(i, text, text) for i, text in enumerate(reference)]
    bad = [Translation(i, text.replace("runs", "walks"), text) for i, text in enumerate(reference)]
    better, same = compare([bad, good, bad])
    assert better.bleu > 30
    assert better.p_value < 0.01
    assert same == (0, 1)


def test_out_of_domain_data_is_recognised_by_its_entropy(
    classifier: Path, classification_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """No labels are needed; AUROC equals that computed from the output of stochattn-predict."""
    other = tmp_path / "other"
    shutil.copytree(classification_data / "input0", other / "input0")
    more = ("--out-of-domain", other, "--out-of-domain-subset", "train", "--samples")
    found = evaluate(classification_data, classifier, more=(*more, 3))["checkpoints"][0]
    outside = found["out_of_domain"]
    assert (outside["data"], outside["split"], outside["examples"]) == (str(other), "train", 320)
    curve = outside["entropy_cdf"]
    assert (curve["in_domain"][-1], curve["out_of_domain"][-1]) == (1, 1)
    assert outside["auroc"]["mutual_information"] != 0.5
    line = rf"^AUROC of mutual information +{outside['auroc']['mutual_information']:.4f}$"
    assert re.search(line, capsys.readouterr().out, re.M)
    mean = evaluate(classification_data, classifier, more=(*more, 0))["checkpoints"][0]
    assert mean["out_of_domain"]["auroc"]["mutual_information"] == 0.5  # nothing was sampled
    entropies = []
    for subset in ("valid", "train"):
        lines = tmp_path / f"{subset}.jsonl"
        flags = ("--gen-subset", subset, "--output", lines, "--cpu")
        given = (classification_data, "--path", classifier, *flags)
        predict.main([str(x) for x in given])
        rows = [json.loads(line)["probabilities"] for line in lines.read_text().splitlines()]
        entropies.append(stats.entropy([list(row.values()) for row in rows], axis=1))
    expected = uncertainty.auroc(*entropies)
    assert mean["out_of_domain"]["auroc"]["entropy"] == pytest.approx(expected, abs=0.003)
    same = ("--out-of-domain-subset", "train", "--samples", 0)  # another split of the same data
    again = evaluate(classification_data, classifier, more=same)["checkpoints"][0]
    assert "metrics" not in mean["out_of_domain"]
    # This split has labels, so it is also measured.
    labelled = again["out_of_domain"]
    assert 0 <= labelled.pop("metrics")["accuracy"] <= 100
    assert sum(bin["count"] for bin in labelled.pop("reliability")) == 320
    assert labelled == {**mean["out_of_domain"], "data": str(classification_data)}


def test_least_certain_examples_have_their_text_and_label(
    classifier: Path, classification_data: Path
) -> None:
    found = evaluate(classification_data, classifier, more=("--samples", 2))["checkpoints"][0]
    sentences = labelled.decoded(classification_data / "input0", "valid")
    labels = labelled.labels(classification_data, "valid")
    for row in found["least_certain"]:
        assert row["text"] == sentences[row["id"]]
        assert row["target"] == labels[row["id"]]
        assert 0 < row["mutual_information"] < row["entropy"]
    assert len({row["id"] for row in found["least_certain"]}) == 20


def test_least_certain_tokens_have_their_context(
    translator: Path, translation_data: Path, text: Path
) -> None:
    """The context is the source and the reference before the token; the target is the token."""
    more = ("--samples", 1, "--no-bleu")
    found = evaluate(translation_data, translator, more=more)["checkpoints"][0]
    lines = [(text / f"valid.{side}").read_text().splitlines() for side in ("src", "tgt")]
    for row in found["least_certain"]:
        source, before = row["text"].removesuffix(" [?]").split(" →")
        assert source == lines[0][row["id"]]
        wanted = "" if row["target"] == "</s>" else f" {row['target']}"
        assert f" {lines[1][row['id']]} ".startswith(f"{before}{wanted} ")


def test_data_without_labels_has_only_entropies(
    choice_data: Path, chooser_checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    found = evaluate(choice_data, chooser_checkpoint, more=("--gen-subset", "test"))
    (model,) = found["checkpoints"]
    names = {"predictive_entropy", "expected_entropy", "mutual_information"}
    assert set(model["metrics"]) == {*names, "mutual_information_share"}
    assert (model["reliability"], model["risk_coverage"]) == (None, None)
    assert {row["target"] for row in model["least_certain"]} == {None}
    assert "accuracy" not in capsys.readouterr().out


def test_plain_attention_is_sampled_with_dropout(
    classification_data: Path, tmp_path: Path, classifier: Path
) -> None:
    flags = (*CLASSIFIER, "--dropout", 0.3, "--max-update", 6)
    plain, _ = train(classification_data, tmp_path / "plain", "roberta", *flags)
    once = evaluate(classification_data, plain, classifier, more=("--samples", 4))
    assert [x["samples"] for x in once["checkpoints"]] == [0, 4]
    kept = ("--samples", 4, "--retain-dropout")
    found = evaluate(classification_data, plain, classifier, more=kept)
    assert [x["samples"] for x in found["checkpoints"]] == [4, 4]
    for before, after in zip(once["checkpoints"], found["checkpoints"], strict=True):
        information = [x["metrics"]["mutual_information"] for x in (before, after)]
        assert information[1] > 2 * information[0]
    assert evaluate(classification_data, plain, classifier, more=kept) == found  # same seed
    other = evaluate(classification_data, plain, classifier, more=(*kept, "--seed", 2))
    assert other["checkpoints"] != found["checkpoints"]


def test_the_json_file_has_the_documented_content(
    classifier: Path, classification_data: Path
) -> None:
    found = evaluate(classification_data, classifier, more=("--samples", 2, "--limit", 7))
    assert list(found) == ["data", "task", "split", "samples", "seed", "checkpoints", "comparisons"]
    assert (found["data"], found["split"]) == (str(classification_data), "valid")
    assert (found["samples"], found["seed"], found["comparisons"]) == (2, 1, [])
    (model,) = found["checkpoints"]
    assert (model["path"], model["arch"]) == (str(classifier), "roberta_babn")
    assert set(model) == {
        *("path", "name", "arch", "members", "samples", "examples", "predictions", "metrics"),
        *("reliability", "risk_coverage", "least_certain", "out_of_domain", "meters"),
    }
    assert model["out_of_domain"] is None
    assert len(model["reliability"]) == 10
    assert set(model["reliability"][0]) == {"low", "high", "confidence", "accuracy", "count"}
    assert set(model["least_certain"][0]) == {
        *("id", "text", "prediction", "target"),
        *("confidence", "entropy", "mutual_information", "words"),
    }
    for word in model["least_certain"][0]["words"]:
        assert set(word) == {"word", "weight", "spread", "varies"}
        assert word["spread"] > 0
    assert model["examples"] == len(model["least_certain"]) == 7


def test_names_of_checkpoints_are_short_and_distinct() -> None:
    for paths, names in (
        (["plain.pt", "runs/babn.pt"], ["plain", "babn"]),
        (["a/plain/checkpoint_best.pt", "a/babn/checkpoint_best.pt"], ["plain", "babn"]),
        (["a/checkpoint1.pt", "a/checkpoint2.pt"], ["checkpoint1", "checkpoint2"]),
        (["a/x/best.pt", "b/x/best.pt", "b/x/last.pt"], ["a/x/best", "b/x/best", "b/x/last"]),
        (["runs/babn/checkpoint_best.pt"], ["babn"]),
        (["checkpoint_best.pt"], ["checkpoint_best"]),
    ):
        assert names_of([Path(path) for path in paths]) == names
    with pytest.raises(InputError, match="given twice"):
        names_of([Path("a.pt"), Path("a.pt")])


def test_texts_are_detokenized_as_in_fairseq() -> None:
    """The flags of fairseq's tokenizers and subwords are accepted."""
    given = ["data", "--path", "x.pt", "--tokenizer", "moses", "--target-lang", "en"]
    args = evaluate_command.parse_arguments([*given, "--remove-bpe"])
    assert (args.remove_bpe, args.target_lang) == ("subword_nmt", "en")
    assert evaluate_command.detokenizer(args)("Hello , world !") == "Hello, world!"
    given = ["data", "--path", "x.pt", "--bpe", "sentencepiece", "--sentencepiece-model", "no"]
    args = evaluate_command.parse_arguments(given)
    with pytest.raises(InputError, match="--tokenizer or --bpe"):
        evaluate_command.detokenizer(args)


def test_bad_input_is_one_line_and_nothing_is_written(
    classifier: Path,
    classification_data: Path,
    lm_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, existing = tmp_path / "out.json", tmp_path / "existing.json"
    existing.write_text("before")
    data, other_words = classification_data, ("--out-of-domain", lm_data)
    for directory, checkpoints, flags, complaint in (
        (data, [classifier], ("--json", existing), "existing.json exists: add --force"),
        (data, [classifier], ("--json", tmp_path / "no" / "x"), "parent directory does not exist"),
        (data, [classifier], ("--json", tmp_path), "is a directory"),
        (data, [classifier], ("--json", "/dev/full", "--force"), "not a regular file"),
        (data, [classifier], ("--retain-dropout", "--samples", 0), "a positive number of --sam"),
        (data, [classifier], ("--remove-bpe", "no"), "--remove-bpe no: Unknown post_process"),
        (data, [classifier], ("--sacrebleu-tokenizer", "no"), "--sacrebleu-tokenizer no: "),
        (data, [classifier], ("--lenpen", "nan"), "--lenpen must be finite"),
        (data, [classifier], ("--user-dir", tmp_path / "no"), "no is not a directory"),
        (data, [classifier], ("--model-overrides", "{'x': 1}"), "has no setting 'x'"),
        (data, [classifier], ("--model-overrides", "{1: 2}"), "a name that is not a text"),
        (data, [classifier], ("--samples", -1), "--samples must not be negative"),
        (data, [classifier], ("--max-tokens", 0), "--max-tokens must be positive"),
        (data, [classifier], ("--gen-subset", "dev"), "no dev set in"),
        (data, [classifier], ("--out-of-domain", data), "is the evaluated data itself"),
        (data, [classifier], ("--out-of-domain", tmp_path / "no"), "no does not exist"),
        (data, [classifier], other_words, "input0/dict.txt is not the dictionary in"),
        (data, [classifier, classifier], (), "is given twice"),
        (data, [tmp_path / "no.pt"], (), "no.pt does not exist"),
        (lm_data, [classifier], (), "does not fit"),
        (data, [classifier], ("--model-overrides", "oops"), "oops is not a dictionary"),
    ):
        with pytest.raises(UsageError, match=re.escape(complaint)) as error:
            run(directory, *checkpoints, more=("--json", out, *flags))
        assert "\n" not in str(error.value)
    assert sorted(tmp_path.iterdir()) == [existing]
    assert existing.read_text() == "before"
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(
        UsageError, match=r"needs scikit-learn: pip install 'fairseq_stochattn\[analysis\]'"
    ):
        run(data, classifier)


@pytest.mark.parametrize("value", ["1e30", "-1", "x", "", str(10**30), "nan", "1.5"])
def test_seeds_that_are_no_seeds(value: str, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as error:
        run(tmp_path, tmp_path / "x.pt", more=(f"--seed={value}",))
    assert error.value.code == 2
    message = capfd.readouterr().err
    assert message.startswith("stochattn-evaluate: error: argument --seed: expected a whole number")
    assert message.count("\n") == 1


def test_models_that_cannot_be_evaluated_or_compared(
    classification_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    scores = tmp_path / "scores"
    shutil.copytree(classification_data / "input0", scores / "input0")
    (scores / "label").mkdir()
    for split, count in (("train", 320), ("valid", 40)):
        (scores / "label" / f"{split}.label").write_text("0.5\n" * count)
    flags = (*CLASSIFIER, "--num-classes", 1, "--regression-target", "--max-update", 1)
    regressor, _ = train(scores, tmp_path / "r", "roberta_babn", *flags)
    with pytest.raises(UsageError, match="a regression predicts no probabilities"):
        run(scores, regressor)
    flags = (*sizes.ELECTRA, *sizes.REPLACED_TOKENS, "--max-update", 1)
    electra, _ = train(lm_data, tmp_path / "e", "electra_babn", *flags)
    with pytest.raises(UsageError, match="ELECTRA is evaluated after fine-tuning"):
        run(lm_data, electra)
    flags = (*sizes.TRANSFORMER_LM, "--max-update", 1)
    language_model, _ = train(lm_data, tmp_path / "lm", "transformer_lm", *flags)
    cause = "is a model of task electra, the first checkpoint one of language_modeling"
    with pytest.raises(UsageError, match=cause):
        run(lm_data, language_model, electra)
