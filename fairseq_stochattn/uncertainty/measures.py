"""Measures of calibration and uncertainty, computed from K samples of class probabilities p_k.

p̄ = 1/K Σ p_k is the mean over the samples. The predicted class has the highest p̄. H[p] is the
entropy of the distribution p. Logarithms and entropies are in bits. Each prediction is reduced to a
few numbers (``Answers``), which saves memory if the vocabulary is large.

ECE, OE: An et al. 2020, App. C.4. PAvPU: Mukhoti and Gal 2018, with the t-test of the BABN paper.
Risk-coverage: Geifman and El-Yaniv 2017. Mutual information: Houlsby et al. 2011.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.optional import optional_import

Array = np.ndarray

BINS = 10
UNCERTAIN = 0.05  # a prediction with a higher p-value is called uncertain
POINTS = 200  # number of points in a curve


@dataclass(frozen=True)
class Answers:
    """N predictions of a model. All fields have the shape (N,).

    The last three are None for data without targets.
    """

    prediction: Array  # the predicted class
    confidence: Array  # p̄ of the predicted class
    # p-value of Welch's t-test between the two most probable classes; 0 if all samples are equal
    p_value: Array
    predictive_entropy: Array  # H[p̄]
    mutual_information: Array  # H[p̄] − 1/K Σ H[p_k]: the disagreement between samples
    square_norm: Array  # sum of p̄² over the classes
    target: Array | None
    target_bits: Array | None  # −log₂ p̄ of the target
    mean_attention_bits: Array | None = None  # −log₂ p of the target with the mean attention

    @property
    def expected_entropy(self) -> Array:
        """1/K Σ H[p_k]."""
        return self.predictive_entropy - self.mutual_information

    @property
    def correct(self) -> Array:
        return self.prediction == self.target

    @property
    def certain(self) -> Array:
        """Whether the two most probable classes differ significantly."""
        return ~(self.p_value > UNCERTAIN)

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """The predictions of all parts in one object."""

        def join(name: str) -> Array | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else np.concatenate(values)

        return cls(**{entry.name: join(entry.name) for entry in fields(cls)})


def summarize(
    log_probs: Tensor, target: Tensor | None, mean_attention: Tensor | None = None
) -> Answers:
    """Reduce log p_k (K, N, C) of N predictions and C classes to ``Answers``; targets are (N,).

    ``mean_attention`` (M, N, C) has the log-probabilities of M models with their mean attention.
    """
    mean, information = _mean_and_information(log_probs)  # (N, C), (N,)
    highest, classes = mean.topk(min(2, mean.size(1)), dim=1)
    top = log_probs.gather(2, classes.expand(len(log_probs), -1, -1)).exp()  # (K, N, 2)
    return Answers(
        prediction=_array(classes[:, 0]),
        confidence=_array(highest[:, 0]),
        p_value=welch_p_value(top[..., 0], top[..., -1]),
        predictive_entropy=_array(_entropy(mean)),
        mutual_information=_array(information),
        square_norm=_array(mean.square().sum(dim=1)),
        target=None if target is None else _array(target),
        target_bits=_target_bits(log_probs, target),
        mean_attention_bits=_target_bits(mean_attention, target),
    )


def _target_bits(log_probs: Tensor | None, target: Tensor | None) -> Array | None:
    """−log₂ of the mean over K of the probability of the target, (K, N, C) and (N,) → (N,)."""
    if log_probs is None or target is None:
        return None
    count = len(log_probs)
    log_target = log_probs.gather(2, target.expand(count, -1).unsqueeze(2)).squeeze(2)
    # logsumexp stays finite where the probability itself is rounded to 0.
    return _array((math.log(count) - log_target.logsumexp(dim=0)) / math.log(2))


class Uncertainty(NamedTuple):
    """Entropies in bits, one per prediction."""

    entropy: Tensor  # H[p̄] of the mean prediction p̄
    expected_entropy: Tensor  # 1/K Σ H[p_k]
    mutual_information: Tensor  # H[p̄] − 1/K Σ H[p_k]: the disagreement between samples


def uncertainty(probabilities: Tensor) -> Uncertainty:
    """Return the entropies, (…) each, of K samples of probabilities (K, …, classes)."""
    mean, information = _mean_and_information(probabilities.log())
    entropy = _entropy(mean)
    return Uncertainty(entropy, entropy - information, information)


def _mean_and_information(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """p̄ (…, C) and the mutual information in bits (…), given log p_k (K, …, C).

    The mutual information is 1/K Σ KL(p_k ‖ p̄) = 1/K Σ_k Σ_c p̄ φ(log p_k/p̄) with
    φ(r) = r eʳ − eʳ + 1 ≥ 0. Unlike the difference of two entropies, this has a small relative
    error also where the samples hardly differ, and it is exactly 0 where they are equal.
    """
    smallest = torch.finfo(log_probs.dtype).min
    largest = log_probs.amax(dim=0).clamp(min=smallest)  # a class of probability 0 has −∞
    relative = (log_probs - largest).clamp_(min=-80)  # e⁻⁸⁰ is still a normal number in fp32
    scale = relative.exp().mean(dim=0)
    mean = largest.exp() * scale
    ratio = relative.sub_(scale.log())  # log p_k/p̄
    growth = ratio.expm1()
    phi = torch.addcmul(ratio, growth, ratio).sub_(growth)
    information = (phi.mean(dim=0) * mean).sum(dim=-1) / math.log(2)
    return mean, information.clamp(min=0)


def _entropy(probs: Tensor) -> Tensor:
    """The entropy in bits, (…, classes) → (…)."""
    return torch.special.entr(probs).sum(dim=-1) / math.log(2)


def _array(values: Tensor) -> Array:
    """The values as a numpy array, with floating-point values in double precision."""
    values = values.cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def welch_p_value(first: Tensor, second: Tensor) -> Array:
    """Two-sided p-value (N,) of Welch's t-test for equal means of two sets of samples (K, N).

    It is 0 if neither set varies, and if K = 1, because there is no evidence of uncertainty then.
    """
    a, b = _array(first), _array(second)
    identical = ((a == a[0]) & (b == b[0])).all(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns about identical samples
        stats = optional_import("scipy.stats", "the t-test of PAvPU")
        p_value = stats.ttest_ind(a, b, equal_var=False).pvalue
    return np.where(identical, 0.0, p_value)


@dataclass(frozen=True)
class Bin:
    """The number of predictions with a confidence in (low, high], and their means."""

    low: float
    high: float
    confidence: float | None  # mean confidence; None if the bin is empty
    accuracy: float | None  # None if the bin is empty
    count: int


def reliability(confidence: Array, correct: Array, bins: int = BINS) -> list[Bin]:
    """Sort predictions, given by confidence (N,) and correct (N,), into bins of equal width."""
    edges = np.linspace(0, 1, bins + 1)
    numbers = np.digitize(confidence, edges[1:-1], right=True)
    result = []
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        inside = numbers == number
        means = [float(x[inside].mean()) if inside.any() else None for x in (confidence, correct)]
        result.append(Bin(low, high, *means, int(inside.sum())))
    return result


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: ECE = Σ |B|/n · |acc(B) − conf(B)| over all bins B.

    |B|/n is the share of predictions in the bin.
    """
    return _mean_over(bins, lambda bin: abs(bin.accuracy - bin.confidence))


def overconfidence_error(bins: Sequence[Bin]) -> float:
    """Overconfidence error: OE = Σ |B|/n · conf(B) · max(conf(B) − acc(B), 0)."""
    return _mean_over(bins, lambda bin: bin.confidence * max(bin.confidence - bin.accuracy, 0.0))


def _mean_over(bins: Sequence[Bin], value: Callable[[Bin], float]) -> float:
    """The mean of ``value`` over the bins, weighted by their counts."""
    total = sum(bin.count for bin in bins)
    return sum(bin.count / total * value(bin) for bin in bins if bin.count)


def brier(answers: Answers) -> float:
    """Brier score, from 0 to 2: the mean over predictions of Σ (p̄ − y)².

    The sum is over the classes; y is 1 for the target and 0 for all other classes.
    """
    target_probability = np.exp2(-answers.target_bits)
    return float((answers.square_norm - 2 * target_probability + 1).mean())


def pavpu(answers: Answers) -> float:
    """PAvPU: the share of predictions that are right and certain, or wrong and uncertain."""
    return float((answers.correct == answers.certain).mean())


@dataclass(frozen=True)
class RiskCoverage:
    """The error rate among the n most confident predictions, for every n."""

    coverage: Array  # (N,): n/N, the share of predictions that are used, most confident first
    risk: Array  # (N,): share of errors among them

    @property
    def area(self) -> float:
        """AURC, the mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(confidence: Array, correct: Array) -> RiskCoverage:
    """The risk-coverage curve. Among predictions of equal confidence, errors are spread evenly."""
    _, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(place, weights=~correct) / count
    number = np.arange(1, len(confidence) + 1)
    return RiskCoverage(number / len(number), np.cumsum(np.repeat(wrong, count)) / number)


def measures(answers: Answers, tokens: bool) -> dict[str, float]:
    """All measures for a data set by name, or only the entropies if there are no targets.

    The accuracy is in percent. If ``tokens``, the predictions are tokens, and the perplexity is
    added. A measure that is not defined for the data is NaN.
    """
    entropy = float(answers.predictive_entropy.mean())
    information = float(answers.mutual_information.mean())
    entropies = {
        "predictive_entropy": entropy,
        "expected_entropy": float(answers.expected_entropy.mean()),
        "mutual_information": information,
        "mutual_information_share": information / entropy if entropy > 0 else math.nan,
    }
    if answers.target is None:
        return entropies
    bins = reliability(answers.confidence, answers.correct)
    nll, central = float(answers.target_bits.mean()), answers.mean_attention_bits
    return {
        "accuracy": 100 * float(answers.correct.mean()),
        "nll": nll,
        **({} if central is None else {"nll_mean_attention": float(central.mean())}),
        **({"perplexity": float(np.exp2(nll))} if tokens else {}),
        "brier": brier(answers),
        "ece": calibration_error(bins),
        "oe": overconfidence_error(bins),
        "pavpu": pavpu(answers),
        "aurc": risk_coverage(answers.confidence, answers.correct).area,
        "auroc_errors_entropy": _auroc_errors(answers, answers.predictive_entropy),
        "auroc_errors_mutual_information": _auroc_errors(answers, answers.mutual_information),
        **entropies,
    }


def _auroc_errors(answers: Answers, uncertainty: Array) -> float:
    """The probability that a random wrong prediction is less certain than a random right one."""
    return auroc(uncertainty[answers.correct], uncertainty[~answers.correct])


def by_example(values: Array, examples: Array) -> Array:
    """The mean value of each example, sorted by example id.

    ``examples`` (N,) holds the example id of each of the values (N,).
    """
    _, place, count = np.unique(examples, return_inverse=True, return_counts=True)
    return np.bincount(place, weights=values) / count


def auroc(inside: Array, outside: Array) -> float:
    """The probability that a random value of ``outside`` is higher than one of ``inside``.

    Ties count half. The result is NaN if one of the sets is empty.
    """
    if not (len(inside) and len(outside)):
        return math.nan
    label = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    sklearn = optional_import("sklearn.metrics", "AUROC")
    return float(sklearn.roc_auc_score(label, np.r_[inside, outside]))


def cumulative(inside: Array, outside: Array) -> tuple[Array, Array, Array]:
    """Empirical cumulative distributions of both sets.

    Returns the points x and, for each set, the share of its values ≤ x.
    """
    both = np.r_[inside, outside]
    points = np.linspace(both.min(), both.max(), POINTS)
    points[-1] = both.max()
    ecdf = optional_import("scipy.stats", "a cumulative distribution").ecdf
    shares = (ecdf(values).cdf.evaluate(points) for values in (inside, outside))
    return points, *shares


def thinned(size: int, most: int = POINTS) -> Array:
    """At most ``most`` evenly spaced indices into a curve of ``size`` points, with both ends."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))
