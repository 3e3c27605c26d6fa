"""Labels for the metrics of stochattn-evaluate, used by the terminal table and the HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MetricLabel:
    """How one metric is shown."""

    label: str
    format: str  # number format in the terminal table
    better: Literal["higher", "lower"] | None  # None: neither direction is better
    meaning: str


# Name of the metric in the JSON file → its label, in the order of the terminal table.
METRIC_LABELS = {
    "bleu": MetricLabel("BLEU", "{:.2f}", "higher", "sacrebleu, for the whole set"),
    "chrf": MetricLabel("chrF", "{:.2f}", "higher", "sacrebleu, for the whole set"),
    "accuracy": MetricLabel("accuracy (%)", "{:.2f}", "higher", "right answers"),
    "accuracy_most_frequent": MetricLabel(
        "accuracy of the main answer (%)",
        "{:.2f}",
        "higher",
        "predictions that are the answer most people gave",
    ),
    "exact": MetricLabel(
        "exact spans (%)",
        "{:.2f}",
        "higher",
        "both start and end of the answer are right",
    ),
    "f1": MetricLabel("F1 (%)", "{:.2f}", "higher", "of the class 1, or of entities"),
    "precision": MetricLabel("precision (%)", "{:.2f}", "higher", "of entities"),
    "recall": MetricLabel("recall (%)", "{:.2f}", "higher", "of entities"),
    "macro_f1": MetricLabel("macro F1 (%)", "{:.2f}", "higher", "mean F1 of all classes"),
    "matthews": MetricLabel("Matthews (%)", "{:.2f}", "higher", "Matthews' correlation"),
    "nll": MetricLabel(
        "nll (bits)", "{:.4f}", "lower", "−log₂ of the probability of the right answer"
    ),
    "nll_mean_attention": MetricLabel(
        "nll of the mean attention (bits)",
        "{:.4f}",
        "lower",
        "nll of one pass without samples, where nll is that of the mean over the samples",
    ),
    "perplexity": MetricLabel("perplexity", "{:.2f}", "lower", "2 to the power of nll"),
    "brier": MetricLabel(
        "Brier score",
        "{:.4f}",
        "lower",
        "squared distance between the probabilities and the right answer",
    ),
    "ece": MetricLabel("ECE", "{:.4f}", "lower", "expected gap between confidence and accuracy"),
    "oe": MetricLabel("OE", "{:.4f}", "lower", "ECE of overconfident bins, weighted by confidence"),
    "pavpu": MetricLabel(
        "PAvPU",
        "{:.4f}",
        "higher",
        "share of answers that are right and certain, or wrong and uncertain",
    ),
    "aurc": MetricLabel(
        "AURC", "{:.4f}", "lower", "risk (share of wrong answers), averaged over all coverages"
    ),
    "auroc_errors_entropy": MetricLabel(
        "AUROC of errors by entropy",
        "{:.4f}",
        "higher",
        "probability that a wrong answer has a higher entropy than a right one",
    ),
    "auroc_errors_mutual_information": MetricLabel(
        "AUROC of errors by mutual information",
        "{:.4f}",
        "higher",
        "probability that a wrong answer has a higher mutual information than a right one",
    ),
    "predictive_entropy": MetricLabel(
        "predictive entropy (bits)", "{:.4f}", None, "total uncertainty"
    ),
    "expected_entropy": MetricLabel(
        "expected entropy (bits)", "{:.4f}", None, "part of the total that is due to the data"
    ),
    "mutual_information": MetricLabel(
        "mutual information (bits)",
        "{:.4g}",
        None,
        "part of the total that is due to the attention",
    ),
    "mutual_information_share": MetricLabel(
        "share of mutual information",
        "{:.4g}",
        None,
        "mutual information, divided by predictive entropy",
    ),
}

# Name of the meter in the JSON file → its label, in the order of the terminal table. What values
# mean that a method acts: docs/meters.md.
METER_LABELS = {
    "noise": MetricLabel(
        "noise", "{:.4g}", None, "standard deviation of the sampled weights, divided by their mean"
    ),
    "mmd": MetricLabel(
        "MMD² of keys and queries",
        "{:.4g}",
        "lower",
        "squared distance between the distributions of keys and queries, in units of their spread",
    ),
    "key_spread": MetricLabel(
        "spread of the keys", "{:.4g}", None, "root mean squared distance to their mean"
    ),
    "query_spread": MetricLabel(
        "spread of the queries", "{:.4g}", None, "root mean squared distance to their mean"
    ),
    "head_cosine": MetricLabel(
        "cosine of heads' weights", "{:.4f}", None, "mean over pairs of heads; 1: equal directions"
    ),
    "feature_cosine": MetricLabel(
        "cosine of heads' outputs", "{:.4f}", None, "mean over pairs of heads; 1: equal directions"
    ),
    "dist_over_norm": MetricLabel(
        "distance of heads / length",
        "{:.4f}",
        None,
        "mean distance between the outputs of two heads, divided by their mean length",
    ),
    "divergence_ratio": MetricLabel(
        "divergence, masks / random masks",
        "{:.3f}",
        "higher",
        "change of the predictions by the adversary's masks, divided by that by random masks",
    ),
    "masked_share": MetricLabel(
        "masked share", "{:.4f}", None, "share of (query, key) pairs that the adversary masks"
    ),
    "harm_correlation": MetricLabel(
        "correlation of drops with harm",
        "{:+.3f}",
        None,
        "of the generator's probabilities with the loss that dropping a pair costs",
    ),
}


def label_of(name: str) -> MetricLabel:
    """The label of a metric or meter, made from its name if the tables do not have it."""
    made = MetricLabel(name.replace("_", " "), "{:.4g}", None, "")
    return (METRIC_LABELS | METER_LABELS).get(name, made)
