"""The statistics of the evidence equal those of scipy and sacrebleu."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats

import evidence_results as synthetic
from fairseq_stochattn.core.errors import InputError

comparison, training = (__import__(name) for name in ("comparison", "training"))


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(map(float, values), start=1))


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_the_interval_is_that_of_the_paired_t_test(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    method, baseline = rng.normal(0.4, 1, seeds), rng.normal(0, 1, seeds)
    found = comparison.paired_difference(by_seed(method), by_seed(baseline))
    expected = stats.ttest_rel(method, baseline).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert found.mean == pytest.approx((method - baseline).mean(), rel=1e-12)
    assert found.count == seeds


def test_runs_are_paired_by_seed() -> None:
    """The order of the seeds does not matter; seeds of one method alone and NaN are ignored."""
    baseline = {5: 1.0, 1: 2.0, 2: 4.0, 3: 8.0, 7: 100.0, 8: 5.0}
    method = {1: 2.1, 2: 4.3, 3: 8.2, 4: -50.0, 5: 1.5, 8: math.nan}
    found = comparison.paired_difference(method, baseline)
    expected = stats.ttest_rel([2.1, 4.3, 8.2, 1.5], [2.0, 4.0, 8.0, 1.0]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.count == 4
    assert comparison.paired(method, baseline) == pytest.approx({1: 0.1, 2: 0.3, 3: 0.2, 5: 0.5})


def test_fewer_than_three_seeds_give_no_interval() -> None:
    baseline = by_seed([1, 2, 3])
    assert comparison.paired_difference(by_seed([1, 3]), baseline) is None
    assert comparison.paired_difference({1: 2.0, 2: math.nan, 3: 4.0}, baseline) is None
    assert comparison.paired_difference({}, baseline) is None
    assert comparison.paired_difference(by_seed([1, 3, 5]), baseline) is not None


@pytest.mark.parametrize(
    ("differences", "excludes"),
    [([1, 1.1, 0.9], True), ([-1, -1.1, -0.9], True), ([1, -1.1, 0.9], False), ([0, 0, 0], False)],
)
def test_whether_an_interval_excludes_zero(differences: list[float], excludes: bool) -> None:
    found = comparison.paired_difference(by_seed(differences), by_seed([0, 0, 0]))
    assert found.excludes_zero is excludes


def test_mean_and_sample_standard_deviation() -> None:
    numbers = np.random.default_rng(1).normal(size=5)
    found = comparison.summarise({**by_seed(numbers), 9: math.inf})
    assert found.mean == pytest.approx(numbers.mean())
    assert found.sd == pytest.approx(numbers.std(ddof=1))
    assert found.count == 5
    assert math.isnan(comparison.summarise({1: 2.0}).sd)
    assert comparison.summarise({1: math.nan}) is None


def test_ratios_are_paired_by_seed() -> None:
    found = comparison.paired_ratio({1: 2.0, 2: 6.0, 3: 5.0, 4: 1.0}, {1: 1.0, 2: 2.0, 3: 2.0})
    assert (found.median, found.low, found.high) == (2.5, 2.0, 3.0)
    assert comparison.paired_ratio({1: 2.0}, {2: 1.0}) is None


@pytest.mark.parametrize("share", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("sentences", [1, 4, 150])
def test_bleu_of_summed_statistics_is_corpus_bleu(share: float, sentences: int) -> None:
    """Also for texts so short that sacrebleu smooths the counts."""
    correct = synthetic.references(sentences)
    hypotheses = synthetic.translations(correct, share, 1)
    rows = comparison.check_bleu_statistics(synthetic.bleu_statistics(hypotheses, correct))
    expected = sacrebleu.corpus_bleu(hypotheses, [correct]).score
    assert comparison.bleu(rows.sum(axis=0)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("share", [0.70, 0.72, 0.76, 0.66])
def test_the_bootstrap_agrees_with_the_test_of_sacrebleu(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The p-value is the same, because the same sentences are drawn."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    correct = synthetic.references(150)
    systems = [
        synthetic.translations(correct, 0.7, 1),
        synthetic.translations(correct, share, 2),
    ]
    named = [("baseline", systems[0]), ("method", systems[1])]
    _, scores = PairedTest(named, {"BLEU": BLEU()}, [correct], "bs", 1000)()
    first, second = scores["BLEU"]
    baseline, method = (np.array(synthetic.bleu_statistics(s, correct)) for s in systems)
    found = comparison.bootstrap_bleu(method, baseline)
    assert found.p_value == pytest.approx(second.p_value, abs=1e-12)
    assert found.difference.mean == pytest.approx(second.score - first.score, abs=1e-9)
    assert found.difference.count == 150


def test_the_interval_of_the_bootstrap_is_that_of_resampled_texts() -> None:
    """Other resamples, scored from the texts themselves, give the same percentiles."""
    correct = synthetic.references(40)
    texts = [synthetic.translations(correct, share, seed) for seed, share in ((1, 0.7), (2, 0.8))]
    baseline, method = (np.array(synthetic.bleu_statistics(text, correct)) for text in texts)
    found = comparison.bootstrap_bleu(method, baseline).difference
    scorer = BLEU(tokenize="none", force=True)  # the words are tokens already
    rng = np.random.default_rng(77)
    differences = []
    for _ in range(400):
        drawn = rng.integers(40, size=40)
        wanted = [[correct[i] for i in drawn]]
        scores = [scorer.corpus_score([text[i] for i in drawn], wanted).score for text in texts]
        differences.append(scores[1] - scores[0])
    expected = np.quantile(differences, [0.025, 0.975])
    width = expected[1] - expected[0]
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.12 * width)


def test_equal_translations_do_not_differ() -> None:
    correct = synthetic.references(30)
    rows = np.array(synthetic.bleu_statistics(synthetic.translations(correct, 0.7, 1), correct))
    found = comparison.bootstrap_bleu(rows, rows)
    assert (found.difference.mean, found.difference.low, found.difference.high) == (0, 0, 0)
    assert found.p_value == 1
    assert not found.difference.excludes_zero


def test_a_bootstrap_needs_the_same_test_set() -> None:
    rows = np.array(synthetic.bleu_statistics(["a dog"] * 3, ["a cat"] * 3))
    with pytest.raises(InputError, match="3 and 2 sentences"):
        comparison.bootstrap_bleu(rows, rows[:2])


@pytest.mark.parametrize(
    "rows",
    [
        "text",
        [],
        [[1, 2, 3]],
        [[1] * 10, [1] * 9],
        [[0.5] * 10],
        [[2, 0, 0, 0, 1, 0, 0, 0, 1, 1]],  # more matches than n-grams
        [[-1, 0, 0, 0, 1, 0, 0, 0, 1, 1]],
        [[5, 6, 3, 2, 1, 0, 5, 4, 3, 2]],  # lengths first, as inside sacrebleu
    ],
)
def test_impossible_statistics_of_bleu_are_refused(rows: object) -> None:
    with pytest.raises(InputError, match="must"):
        comparison.check_bleu_statistics(rows)


@pytest.mark.parametrize("highest", [False, True])
def test_epochs_after_the_end_of_patience_do_not_count(highest: bool) -> None:
    """A resumed training forgets how long it has waited, and may find a better epoch too late."""
    sign = -1 if highest else 1
    scores = {n: sign * s for n, s in enumerate([5.0, 4.0, 4.5, 4.0, 4.2, 1.0, 0.5], start=1)}
    kept = training.before_stop(scores, 3, highest)
    assert list(kept) == [1, 2, 3, 4, 5]  # the epochs 3 to 5 are not better than epoch 2
    assert training.best_epoch(kept, highest) == 2
    assert training.before_stop(scores, 4, highest) == scores
