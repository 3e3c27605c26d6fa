"""How far the probabilities of a model can be trusted, from K samples of them.

Every prediction is kept as a few numbers (``Answers``), so vocabularies may be large. Predicted is
the class with the highest mean probability p̄ = 1/K Σ p_k. Logarithms and entropies are in bits.

ECE, OE: An et al. 2020, App. C.4. PAvPU: Mukhoti and Gal 2018, with the t-test of the BABN paper.
Risk-coverage: Geifman and El-Yaniv 2017. Mutual information: Houlsby et al. 2011.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fairseq_stochattn.metrics import library

Array = np.ndarray

BINS = 10
UNCERTAIN = 0.05  # p above which two classes cannot be told apart
POINTS = 200  # of a curve


@dataclass(frozen=True)
class Answers:
    """N predictions of a model; what needs the right answers is None where there are none."""

    prediction: Array
    confidence: Array  # p̄ of the prediction
    p_value: Array  # Welch's t-test between the two highest classes; 0 where samples are identical
    predictive_entropy: Array  # H[p̄]
    expected_entropy: Array  # 1/K Σ H[p_k]
    square_norm: Array  # Σ p̄² over the classes
    target: Array | None
    target_bits: Array | None  # −log₂ p̄ of the target

    @property
    def mutual_information(self) -> Array:
        """H[p̄] − 1/K Σ H[p_k]: what the samples disagree about; never negative but for rounding."""
        return np.maximum(self.predictive_entropy - self.expected_entropy, 0.0)

    @property
    def correct(self) -> Array:
        return self.prediction == self.target

    @property
    def certain(self) -> Array:
        return ~(self.p_value > UNCERTAIN)

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        def join(name: str) -> Array | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else np.concatenate(values)

        return cls(**{entry.name: join(entry.name) for entry in fields(cls)})


def summarize(log_probs: Tensor, target: Tensor | None) -> Answers:
    """log p_k of N predictions between C classes, (K, N, C), and their targets, (N,)."""
    probs = log_probs.exp()
    mean = probs.mean(dim=0)  # (N, C)
    highest, classes = mean.topk(min(2, mean.size(1)), dim=1)
    top = probs.gather(2, classes.expand(len(probs), -1, -1))  # (K, N, 2)
    bits = None
    if target is not None:
        of_target = log_probs.gather(2, target.expand(len(probs), -1).unsqueeze(2)).squeeze(2)
        bits = (math.log(len(probs)) - of_target.logsumexp(dim=0)) / math.log(2)
    return Answers(
        prediction=_array(classes[:, 0]),
        confidence=_array(highest[:, 0]),
        p_value=welch_p_value(top[..., 0], top[..., -1]),
        predictive_entropy=_array(_entropy(mean)),
        expected_entropy=_array(_entropy(probs).mean(dim=0)),
        square_norm=_array(mean.square().sum(dim=1)),
        target=None if target is None else _array(target),
        target_bits=None if bits is None else _array(bits),
    )


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(dim=-1) / math.log(2)


def _array(values: Tensor) -> Array:
    values = values.cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def welch_p_value(first: Tensor, second: Tensor) -> Array:
    """(N,): two-sided p of equal means of two (K, N) sets of samples.

    0 where neither side varies, or there is one sample only: nothing speaks against the order.
    """
    a, b = _array(first), _array(second)
    identical = ((a == a[0]) & (b == b[0])).all(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns of just these
        p_value = library("scipy.stats").ttest_ind(a, b, equal_var=False).pvalue
    return np.where(identical, 0.0, p_value)


@dataclass(frozen=True)
class Bin:
    """The predictions with a confidence in (low, high]; without any, no confidence or accuracy."""

    low: float
    high: float
    confidence: float | None
    accuracy: float | None
    count: int


def reliability(confidence: Array, correct: Array, bins: int = BINS) -> list[Bin]:
    edges = np.linspace(0, 1, bins + 1)
    numbers = np.digitize(confidence, edges[1:-1], right=True)
    found = []
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        inside = numbers == number
        means = [float(x[inside].mean()) if inside.any() else None for x in (confidence, correct)]
        found.append(Bin(low, high, *means, int(inside.sum())))
    return found


def calibration_error(bins: Sequence[Bin]) -> float:
    """ECE = Σ |B|/n · |acc(B) − conf(B)|."""
    return _mean_over(bins, lambda bin: abs(bin.accuracy - bin.confidence))


def overconfidence_error(bins: Sequence[Bin]) -> float:
    """OE = Σ |B|/n · conf(B) · max(conf(B) − acc(B), 0)."""
    return _mean_over(bins, lambda bin: bin.confidence * max(bin.confidence - bin.accuracy, 0.0))


def _mean_over(bins: Sequence[Bin], value: Callable[[Bin], float]) -> float:
    total = sum(bin.count for bin in bins)
    return sum(bin.count / total * value(bin) for bin in bins if bin.count)


def brier(answers: Answers) -> float:
    """The mean of Σ (p̄ − y)² over all classes, from 0 to 2; y is 1 for the target, else 0."""
    of_target = np.exp2(-answers.target_bits)
    return float((answers.square_norm - 2 * of_target + 1).mean())


def pavpu(answers: Answers) -> float:
    """The share of accurate and certain plus that of inaccurate and uncertain predictions."""
    return float((answers.correct == answers.certain).mean())


@dataclass(frozen=True)
class RiskCoverage:
    """The share of errors among the most confident predictions, for every share of them."""

    coverage: Array
    risk: Array

    @property
    def area(self) -> float:
        """AURC, the mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(confidence: Array, correct: Array) -> RiskCoverage:
    """Predictions of equal confidence count as one another's mean: their order means nothing."""
    _, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(place, weights=~correct) / count
    number = np.arange(1, len(confidence) + 1)
    return RiskCoverage(number / len(number), np.cumsum(np.repeat(wrong, count)) / number)


def measures(answers: Answers, tokens: bool) -> dict[str, float]:
    """All that can be said of a data set, by name; the accuracy in percent. ``tokens``: perplexity.

    Without targets only the entropies.
    """
    found = {
        "predictive_entropy": float(answers.predictive_entropy.mean()),
        "expected_entropy": float(answers.expected_entropy.mean()),
        "mutual_information": float(answers.mutual_information.mean()),
    }
    if answers.target is None:
        return found
    bins = reliability(answers.confidence, answers.correct)
    nll = float(answers.target_bits.mean())
    return {
        "accuracy": 100 * float(answers.correct.mean()),
        "nll": nll,
        **({"perplexity": float(np.exp2(nll))} if tokens else {}),
        "brier": brier(answers),
        "ece": calibration_error(bins),
        "oe": overconfidence_error(bins),
        "pavpu": pavpu(answers),
        "aurc": risk_coverage(answers.confidence, answers.correct).area,
        **found,
    }


def by_example(values: Array, examples: Array) -> Array:
    """The mean over the predictions of each example."""
    _, place, count = np.unique(examples, return_inverse=True, return_counts=True)
    return np.bincount(place, weights=values) / count


def auroc(inside: Array, outside: Array) -> float:
    """How often a value of outside is higher than one of inside; 0.5 is chance."""
    label = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(library("sklearn.metrics").roc_auc_score(label, np.r_[inside, outside]))


def cumulative(inside: Array, outside: Array) -> tuple[Array, Array, Array]:
    """Points between the extremes of both, and the shares of either that are not above them."""
    both = np.r_[inside, outside]
    points = np.linspace(both.min(), both.max(), POINTS)
    points[-1] = both.max()
    ecdf = library("scipy.stats").ecdf
    shares = (ecdf(values).cdf.evaluate(points) for values in (inside, outside))
    return points, *shares


def thinned(size: int, most: int = POINTS) -> Array:
    """At most so many indices of a curve of ``size`` points, evenly spaced, its end among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))
