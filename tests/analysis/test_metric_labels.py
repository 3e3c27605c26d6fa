"""The terminal table and the HTML page show all metrics with the labels in METRIC_LABELS."""

from __future__ import annotations

import re

import evaluated
from fairseq_stochattn.analysis.evaluate_report import LABEL_WIDTH, as_table
from fairseq_stochattn.analysis.metric_labels import METRIC_LABELS, label_of
from fairseq_stochattn.analysis.report_evaluation import metrics

TABLE = [
    *("BLEU", "chrF", "accuracy (%)", "accuracy of the main answer (%)", "exact spans (%)"),
    *("F1 (%)", "precision (%)", "recall (%)", "macro F1 (%)"),
    *("Matthews (%)", "nll (bits)", "nll of the mean attention (bits)", "perplexity"),
    *("Brier score", "ECE", "OE", "PAvPU", "AURC", "AUROC of errors by entropy"),
    *("AUROC of errors by mutual information", "predictive entropy (bits)"),
    *("expected entropy (bits)", "mutual information (bits)", "share of mutual information"),
]
FIRST = ["accuracy (%)", "BLEU", "perplexity", "nll (bits)"]
PAGE = [*FIRST, *(label for label in TABLE if label not in FIRST)]


def evaluation() -> dict:
    """An evaluation of two checkpoints in which every metric has the value 0.25."""
    found = evaluated.evaluation()
    for entry in found["checkpoints"]:
        entry |= {"samples": 20, "examples": 3, "predictions": 3}
        entry["out_of_domain"] = None
        entry["metrics"] = dict.fromkeys(METRIC_LABELS, 0.25)
    return found


def test_terminal_table_has_all_metrics_in_its_order() -> None:
    lines = as_table(evaluation()).splitlines()[4:]
    assert [line[:LABEL_WIDTH].rstrip() for line in lines[: len(TABLE)]] == TABLE
    assert lines[TABLE.index("accuracy (%)")].split()[-2:] == ["0.25", "0.25"]
    assert lines[TABLE.index("ECE")].split() == ["ECE", "0.2500", "0.2500"]


def test_page_has_all_metrics_in_its_order_and_unknown_ones_by_name() -> None:
    found = evaluation()
    found["checkpoints"][1]["metrics"]["new_metric"] = 0.5
    page = metrics(found)
    labels = re.findall(r'data-label="measure">([^<]*)', page)
    assert labels == [*PAGE, "new metric"]
    assert "expected gap between confidence and accuracy; lower is better" in page
    assert label_of("new_metric").meaning == ""
