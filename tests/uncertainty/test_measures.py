"""Measures of calibration and uncertainty equal those of libraries, closed forms and loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score
from torch import Tensor

from fairseq_stochattn.uncertainty.measures import (
    Answers,
    auroc,
    by_example,
    calibration_error,
    cumulative,
    measures,
    overconfidence_error,
    pavpu,
    reliability,
    risk_coverage,
    summarize,
    thinned,
    welch_p_value,
)

SAMPLES, NUMBER, CLASSES = 20, 300, 5


def synthetic(seed: int = 1, spread: float = 0.7) -> tuple[Tensor, Tensor]:
    """log p_k (K, N, C) around a distribution, and targets (N,) drawn from that distribution."""
    generator = torch.Generator().manual_seed(seed)
    centre = 1.5 * torch.randn(NUMBER, CLASSES, generator=generator, dtype=torch.float64)
    noise = torch.randn(SAMPLES, NUMBER, CLASSES, generator=generator, dtype=torch.float64)
    target = torch.multinomial(centre.softmax(dim=1), 1, generator=generator).squeeze(1)
    return (centre + spread * noise).log_softmax(dim=2), target


@pytest.fixture(scope="module")
def case() -> tuple[Tensor, Tensor, Answers]:
    """Synthetic log-probabilities, targets, and their ``Answers``."""
    log_probs, target = synthetic()
    return log_probs, target, summarize(log_probs, target)


def test_measures_equal_those_of_scikit_learn_and_scipy(case) -> None:
    log_probs, target, answers = case
    probs = log_probs.exp().numpy()
    mean, gold = probs.mean(axis=0), target.numpy()
    found = measures(answers, tokens=True)
    labels = list(range(CLASSES))
    assert found["accuracy"] == pytest.approx(100 * accuracy_score(gold, mean.argmax(axis=1)))
    assert found["nll"] == pytest.approx(log_loss(gold, mean, labels=labels) / math.log(2))
    assert found["perplexity"] == pytest.approx(math.exp(log_loss(gold, mean, labels=labels)))
    expected = brier_score_loss(gold, mean, labels=labels, scale_by_half=False)
    assert found["brier"] == pytest.approx(expected)
    predictive = stats.entropy(mean, axis=1, base=2)
    each = stats.entropy(probs, axis=2, base=2)
    assert answers.predictive_entropy == pytest.approx(predictive)
    assert answers.expected_entropy == pytest.approx(each.mean(axis=0))
    # The mutual information equals the mean KL divergence of the samples from their mean.
    divergence = stats.entropy(probs, mean[None], axis=2, base=2).mean(axis=0)
    assert answers.mutual_information == pytest.approx(divergence)
    assert found["mutual_information"] == pytest.approx(divergence.mean())


def test_calibration_errors_equal_those_of_a_loop(case) -> None:
    log_probs, target, answers = case
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, gold in zip(log_probs.exp().mean(dim=0).tolist(), target.tolist(), strict=True):
        confidence = max(row)
        bin = math.ceil(10 * confidence) - 1  # (0.3, 0.4] is bin 3
        bins.setdefault(bin, []).append((confidence, row.index(confidence) == gold))
    ece = oe = 0.0
    for members in bins.values():
        confidence = sum(p for p, _ in members) / len(members)
        accuracy = sum(right for _, right in members) / len(members)
        ece += len(members) / NUMBER * abs(accuracy - confidence)
        oe += len(members) / NUMBER * confidence * max(confidence - accuracy, 0)
    found = measures(answers, tokens=False)
    assert found["ece"] == pytest.approx(ece)
    assert found["oe"] == pytest.approx(oe)
    assert ece > oe > 0


def test_calibration_errors_equal_their_closed_form() -> None:
    """All predictions have confidence 0.8; 4 of 5, 2 of 5, or all of them are right."""
    confidence = np.full(10, 0.8)
    calibrated = reliability(confidence, np.array([True, True, True, True, False] * 2))
    assert calibration_error(calibrated) == pytest.approx(0)
    assert overconfidence_error(calibrated) == pytest.approx(0)
    overconfident = reliability(confidence, np.array([True, True, False, False, False] * 2))
    assert calibration_error(overconfident) == pytest.approx(0.4)
    assert overconfidence_error(overconfident) == pytest.approx(0.8 * 0.4)
    underconfident = reliability(confidence, np.ones(10, dtype=bool))
    assert calibration_error(underconfident) == pytest.approx(0.2)
    assert overconfidence_error(underconfident) == 0


def test_empty_bins_are_kept_and_have_no_weight() -> None:
    bins = reliability(np.array([0.3, 0.05, 1.0]), np.array([True, False, True]))
    assert [bin.count for bin in bins] == [1, 0, 1, 0, 0, 0, 0, 0, 0, 1]  # 0.3 is in (0.2, 0.3]
    assert (bins[1].confidence, bins[1].accuracy) == (None, None)
    assert (bins[0].low, bins[9].high) == (0.0, 1.0)
    assert calibration_error(bins) == pytest.approx((0.05 + 0.7 + 0) / 3)


def test_pavpu_equals_that_of_a_loop(case) -> None:
    """The loop computes Welch's t-test with Satterthwaite's degrees of freedom."""
    log_probs, target, answers = case
    probs = log_probs.exp().numpy()
    good = uncertain = 0
    for n in range(NUMBER):
        first, second = np.argsort(-probs[:, n].mean(axis=0))[:2]
        a, b = probs[:, n, first], probs[:, n, second]
        u, v = a.var(ddof=1) / SAMPLES, b.var(ddof=1) / SAMPLES
        t = (a.mean() - b.mean()) / math.sqrt(u + v)
        freedom = (u + v) ** 2 / (u**2 / (SAMPLES - 1) + v**2 / (SAMPLES - 1))
        p = 2 * stats.t.sf(abs(t), freedom)
        assert answers.p_value[n] == pytest.approx(p, abs=1e-12)
        uncertain += p > 0.05
        good += (first == target[n].item()) == (p <= 0.05)
    assert pavpu(answers) == pytest.approx(good / NUMBER)
    assert 10 < uncertain < NUMBER / 2


def test_errors_are_recognised_as_by_scikit_learn(case) -> None:
    """The label is whether the prediction is wrong; the score is its uncertainty."""
    log_probs, target, answers = case
    probs = log_probs.exp().numpy()
    mean = probs.mean(axis=0)
    wrong = mean.argmax(axis=1) != target.numpy()
    entropy = stats.entropy(mean, axis=1)
    information = stats.entropy(probs, mean[None], axis=2).mean(axis=0)
    found = measures(answers, tokens=False)
    assert found["auroc_errors_entropy"] == pytest.approx(roc_auc_score(wrong, entropy))
    expected = roc_auc_score(wrong, information)
    assert found["auroc_errors_mutual_information"] == pytest.approx(expected)
    assert found["auroc_errors_entropy"] > 0.6
    share = information.mean() / entropy.mean()
    assert found["mutual_information_share"] == pytest.approx(share)


def test_auroc_of_errors_is_undefined_if_all_predictions_are_right() -> None:
    log_probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]], dtype=torch.float64).log()
    found = measures(summarize(log_probs, torch.tensor([0, 1])), tokens=False)
    assert math.isnan(found["auroc_errors_entropy"])
    assert math.isnan(found["auroc_errors_mutual_information"])
    assert found["accuracy"] == 100


def test_nll_of_the_mean_attention_is_that_of_its_own_probabilities(case) -> None:
    """Two models with their mean attention are an ensemble, whose probabilities are averaged."""
    log_probs, target, answers = case
    central = log_probs[:2]
    found = measures(summarize(log_probs, target, central), tokens=False)
    probs = central.exp().mean(dim=0).numpy()
    expected = log_loss(target.numpy(), probs, labels=list(range(CLASSES))) / math.log(2)
    assert found["nll_mean_attention"] == pytest.approx(expected)
    assert found.pop("nll_mean_attention") > found["nll"]
    assert found == measures(answers, tokens=False)


@pytest.mark.parametrize("classes", [3, 50, 2000])
@pytest.mark.parametrize("noise", [1e-5, 1e-3, 1.0])
def test_small_mutual_information_is_exact_in_single_precision(classes: int, noise: float) -> None:
    """It equals the mean KL divergence in double precision; equal samples have exactly none."""
    generator = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(1, 200, classes, generator=generator)
    noise = noise * torch.randn(20, 200, classes, generator=generator)
    log_probs = (logits + noise).log_softmax(dim=2)
    exact = log_probs.double().log_softmax(dim=2)
    mean = exact.exp().mean(dim=0)
    divergence = (exact.exp() * (exact - mean.log())).sum(dim=2).mean(dim=0) / math.log(2)
    # Every second prediction is wrong.
    target = (log_probs.exp().mean(dim=0).argmax(dim=1) + torch.arange(200) % 2) % classes
    found = summarize(log_probs, target).mutual_information
    assert found.mean() == pytest.approx(divergence.mean().item(), rel=0.01)
    assert found == pytest.approx(divergence.numpy(), rel=0.1)
    equal = summarize(log_probs[:1].repeat(20, 1, 1), target)
    assert (equal.mutual_information == 0).all()
    assert measures(equal, tokens=True)["auroc_errors_mutual_information"] == 0.5


def test_classes_of_probability_0_do_not_break_the_mutual_information() -> None:
    """One class is never possible; another one only in one of two samples."""
    probs = torch.tensor([[[0.5, 0.5, 0.0, 0.0]], [[0.25, 0.25, 0.5, 0.0]]])
    mean = probs.mean(dim=0).numpy()
    expected = (
        stats.entropy(mean, axis=1, base=2) - stats.entropy(probs[:, 0], axis=1, base=2).mean()
    )
    answers = summarize(probs.log(), torch.tensor([2]))
    assert answers.mutual_information == pytest.approx(expected)
    assert answers.target_bits == pytest.approx(2)


def test_identical_samples_are_certain() -> None:
    """This holds even if two classes are equally probable. All measures equal those for K = 1."""
    row = torch.tensor([[0.3, 0.3, 0.4], [0.1, 0.45, 0.45], [0.1, 0.2, 0.7]]).log()
    target = torch.tensor([0, 1, 2])
    many, one = summarize(row.repeat(20, 1, 1), target), summarize(row[None], target)
    for answers in (many, one):
        assert answers.certain.all()
        assert answers.mutual_information == pytest.approx(0, abs=1e-6)
        assert pavpu(answers) == pytest.approx(answers.correct.mean())
    for name, value in measures(one, tokens=True).items():
        assert measures(many, tokens=True)[name] == pytest.approx(value, abs=1e-5), name


def test_p_value_is_0_only_if_no_class_varies() -> None:
    steady, moving = torch.full((5, 1), 0.4), torch.tensor([0.1, 0.2, 0.3, 0.2, 0.1])[:, None]
    assert welch_p_value(steady, steady) == 0  # no evidence of uncertainty
    assert welch_p_value(steady, steady / 2) == 0
    assert 0 < welch_p_value(steady, moving) < 0.05
    assert welch_p_value(moving, moving) == 1


def test_predictions_with_a_single_class_are_certain_and_right() -> None:
    answers = summarize(torch.zeros(3, 4, 1), torch.zeros(4).long())
    found = measures(answers, tokens=False)
    assert (found["accuracy"], found["nll"], found["ece"]) == (100, 0, 0)
    assert (found["pavpu"], found["predictive_entropy"], found["brier"]) == (1, 0, 0)


def test_all_entropy_is_mutual_information_if_samples_predict_different_classes() -> None:
    """Each of four samples predicts another class with probability 1."""
    answers = summarize(torch.eye(4).clamp(min=1e-30).log()[:, None], None)
    assert answers.predictive_entropy == pytest.approx(2)
    assert answers.expected_entropy == pytest.approx(0, abs=1e-6)
    assert answers.mutual_information == pytest.approx(2)
    assert not answers.certain.any()


def test_bits_of_targets_with_probability_zero_are_finite() -> None:
    """The probability is rounded to 0 in single precision, but its logarithm is finite."""
    log_probs = torch.tensor([[[0.0, -500.0]]])
    answers = summarize(log_probs, torch.tensor([1]))
    assert answers.target_bits == pytest.approx(500 / math.log(2))
    assert measures(answers, tokens=False)["brier"] == pytest.approx(2)


def test_only_entropies_are_measured_without_targets(case) -> None:
    log_probs, _, labelled = case
    found = measures(summarize(log_probs, None), tokens=True)
    names = {"predictive_entropy", "expected_entropy", "mutual_information"}
    assert set(found) == {*names, "mutual_information_share"}
    assert found.items() <= measures(labelled, tokens=True).items()


def test_joined_parts_equal_the_whole(case) -> None:
    log_probs, target, whole = case
    parts = [summarize(log_probs[:, part], target[part]) for part in (slice(7), slice(7, None))]
    assert measures(Answers.joined(parts), True) == pytest.approx(measures(whole, True))


def test_risk_coverage_equals_that_of_a_loop(case) -> None:
    _, _, answers = case
    curve = risk_coverage(answers.confidence, answers.correct)
    order = np.argsort(-answers.confidence)
    risks = [np.mean(~answers.correct[order[:n]]) for n in range(1, NUMBER + 1)]
    assert curve.risk == pytest.approx(risks)
    assert curve.coverage == pytest.approx(np.arange(1, NUMBER + 1) / NUMBER)
    assert curve.area == pytest.approx(np.mean(risks))
    assert curve.risk[-1] == pytest.approx(1 - answers.correct.mean())
    assert curve.area < curve.risk[-1]


def test_order_of_equal_confidences_does_not_matter() -> None:
    """The risk is the mean over all orders of the predictions with equal confidence."""
    confidence = np.array([0.9, 0.5, 0.5, 0.5, 0.2])
    correct = np.array([True, False, True, True, False])
    orders = [[True, *middle, False] for middle in itertools.permutations(correct[1:4])]
    risks = [np.cumsum(~np.array(order)) / np.arange(1, 6) for order in orders]
    for shuffle in ([0, 1, 2, 3, 4], [3, 4, 1, 0, 2]):
        curve = risk_coverage(confidence[shuffle], correct[shuffle])
        assert curve.risk == pytest.approx(np.mean(risks, axis=0))


def test_auroc_and_cumulative_shares_equal_those_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(size=50).round(1), rng.normal(loc=0.7, size=40).round(1)
    pairs = [(b > a) + 0.5 * (b == a) for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs))
    assert auroc(inside, inside) == pytest.approx(0.5)
    points, first, second = cumulative(inside, outside)
    for point, a, b in zip(points, first, second, strict=True):
        assert a == pytest.approx(np.mean(inside <= point))
        assert b == pytest.approx(np.mean(outside <= point))
    assert (first[-1], second[-1]) == (1, 1)
    assert len(points) == 200


def test_means_are_sorted_by_example_and_thinned_curves_keep_both_ends() -> None:
    assert by_example(np.array([1.0, 5.0, 3.0]), np.array([7, 2, 7])).tolist() == [5.0, 2.0]
    assert thinned(3).tolist() == [0, 1, 2]
    kept = thinned(12345)
    assert (len(kept), kept[0], kept[-1]) == (200, 0, 12344)
