"""stochattn-evaluate --ensemble: its measures are those of the mean over the members."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

import runner
import sizes
from bad_input import complaint
from evaluating import evaluate, run, train
from fairseq_stochattn.analysis.loading import DataSelection, load_batches, load_models
from fairseq_stochattn.uncertainty import measures as uncertainty
from fairseq_stochattn.uncertainty.sampling import sampled_attention

CLASSIFIER = (*sizes.ROBERTA, *sizes.CLASSIFICATION, "--max-update", 1)
HEAD = "sentence_classification_head"


@pytest.fixture(scope="module")
def members(classification_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three trained classifiers: two with plain attention and one with BABN."""
    folder = tmp_path_factory.mktemp("members")
    archs = ("roberta", "roberta", "roberta_babn")
    return [
        train(classification_data, folder / str(seed), arch, *CLASSIFIER, "--seed", seed)[0]
        for seed, arch in enumerate(archs, start=1)
    ]


def outputs(model: nn.Module, batch: dict, copies: int = 1) -> Tensor:
    """The log-probabilities of ``copies`` copies of a batch, (copies, B, classes)."""
    inputs = {k: x.repeat_interleave(copies, dim=0) for k, x in batch["net_input"].items()}
    with torch.no_grad():
        logits = model(**inputs, features_only=True, classification_head_name=HEAD)[0].double()
    return logits.log_softmax(dim=1).unflatten(0, (-1, copies)).transpose(0, 1)


def loaded(data: Path, paths: list[Path]) -> tuple[list[nn.Module], dict]:
    """The models and the validation set as one batch."""
    models, task, _ = load_models([str(path) for path in paths], str(data), {})
    (batch,) = load_batches(task, models, DataSelection(str(data)))
    return models, batch


def test_members_are_the_samples(
    members: list[Path], classification_data: Path, capsys: pytest.CaptureFixture
) -> None:
    """All measures equal those that scipy and scikit-learn compute from the members' outputs."""
    other = ("--out-of-domain-subset", "train")
    found = evaluate(classification_data, *members, more=("--ensemble", *other))
    assert (found["samples"], found["comparisons"]) == (0, [])
    (model,) = found["checkpoints"]
    assert model["name"] == "ensemble of 3"
    assert model["path"] == ":".join(map(str, members))
    assert model["arch"] == "roberta, roberta_babn"
    assert (model["members"], model["samples"], model["examples"]) == (3, 0, 40)
    models, batch = loaded(classification_data, members)
    log_probs = torch.cat([outputs(model, batch) for model in models])  # (3, 40, 5)
    probs, target = log_probs.exp().numpy(), batch["target"].flatten().numpy()
    mean = probs.mean(axis=0)
    metrics = model["metrics"]
    nll = log_loss(target, mean, labels=range(5)) / math.log(2)
    assert metrics["nll"] == metrics["nll_mean_attention"] == pytest.approx(nll, rel=1e-5)
    expected = 100 * accuracy_score(target, mean.argmax(axis=1))
    assert metrics["accuracy"] == pytest.approx(expected)
    information = stats.entropy(probs, mean[None], axis=2, base=2).mean()
    assert metrics["mutual_information"] == pytest.approx(information, rel=1e-4)
    assert information > 0.001
    everything = uncertainty.measures(
        uncertainty.summarize(log_probs, torch.tensor(target), log_probs), tokens=False
    )
    assert None not in metrics.values(), metrics
    assert everything == pytest.approx({k: metrics[k] for k in everything}, rel=1e-4)
    assert set(model["out_of_domain"]["auroc"]) == {
        *("entropy", "mutual_information", "max_probability"),
    }
    assert model["out_of_domain"]["auroc"]["mutual_information"] != 0.5
    table = capsys.readouterr().out
    assert re.search(r"^ +ensemble of 3$", table, re.M)
    assert re.search(r"^members of the ensemble +3$", table, re.M)
    # The members alone are worse on average: log is concave.
    alone = evaluate(classification_data, *members, more=("--samples", 0))["checkpoints"]
    assert metrics["nll"] < sum(x["metrics"]["nll"] for x in alone) / 3


def test_members_have_equal_weights_whether_or_not_they_are_sampled(
    members: list[Path], classification_data: Path
) -> None:
    """The plain members make one pass; the BABN member has 6 samples, the same with the seed."""
    flags = ("--ensemble", "--samples", 6, "--max-tokens", 10_000, "--seed", 5)
    (model,) = evaluate(classification_data, *members, more=flags)["checkpoints"]
    assert (model["members"], model["samples"]) == (3, 6)
    models, batch = loaded(classification_data, members)
    torch.manual_seed(5)
    with sampled_attention(models[2:]):
        sampled = outputs(models[2], batch, copies=6)
    plain = [outputs(x, batch) for x in models[:2]]
    mean = (sum(x[0].exp() for x in plain) + sampled.exp().mean(dim=0)) / 3
    target = batch["target"].flatten().numpy()
    nll = log_loss(target, mean.numpy(), labels=range(5)) / math.log(2)
    assert model["metrics"]["nll"] == pytest.approx(nll, rel=1e-5)
    expected = sum(stats.entropy(x[0].exp(), axis=1, base=2).mean() for x in plain)
    expected += stats.entropy(sampled.exp(), axis=2, base=2).mean()
    assert model["metrics"]["expected_entropy"] == pytest.approx(expected / 3, rel=1e-4)
    assert model["metrics"]["nll_mean_attention"] != model["metrics"]["nll"]


def test_bleu_of_an_ensemble_equals_that_of_fairseq(translation_data: Path, tmp_path: Path) -> None:
    """The members have different archs, as fairseq-generate allows."""
    size = {"transformer": sizes.TRANSFORMER, "lstm": sizes.LSTM}
    paths = [
        train(translation_data, tmp_path / arch, arch, *size[arch], "--max-epoch", 12)[0]
        for arch in size
    ]
    flags = ("--gen-subset", "valid", "--beam", 3, "--scoring", "sacrebleu")
    text = runner.generate(translation_data, ":".join(map(str, paths)), *flags).text
    expected = float(re.search(r"BLEU = ([\d.]+)", text).group(1))
    more = ("--ensemble", "--beam", 3)
    (model,) = evaluate(translation_data, *paths, more=more)["checkpoints"]
    assert model["metrics"]["bleu"] == pytest.approx(expected, abs=0.006)
    alone = evaluate(translation_data, *paths, more=("--beam", 3))["checkpoints"]
    assert model["metrics"]["bleu"] not in [x["metrics"]["bleu"] for x in alone]
    assert model["metrics"]["mutual_information"] > 0
    assert {"chrf", "perplexity", "auroc_errors_mutual_information"} < set(model["metrics"])


def test_members_that_do_not_fit_each_other(
    members: list[Path], classification_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    flags = (*sizes.ROBERTA, *sizes.CLASSIFICATION, "--init-token", 0, "--max-update", 1)
    other, _ = train(classification_data, tmp_path / "other", "roberta", *flags)
    flags = (*sizes.ROBERTA, *sizes.MASKED_LM, "--max-update", 1)
    masked, _ = train(lm_data, tmp_path / "masked", "roberta", *flags)
    flags = (*sizes.TRANSFORMER_LM, "--max-update", 1)
    causal, _ = train(lm_data, tmp_path / "causal", "transformer_lm", *flags)

    def says(*paths: Path, data: Path = classification_data, more: tuple = ()) -> str:
        return complaint(lambda: run(data, *paths, more=("--ensemble", *more)))

    assert "other/checkpoint_last.pt has --init-token 0" in says(members[0], other)
    assert "is a model of task masked_lm" in says(causal, masked, data=lm_data)
    assert "does not fit the data" in says(members[0], masked)
    assert "at least two checkpoints" in says(members[0])
    assert "is given twice" in says(members[0], members[0])
    dropout = says(*members, more=("--retain-dropout",))
    assert "--retain-dropout: give a positive number of --samples" in dropout
