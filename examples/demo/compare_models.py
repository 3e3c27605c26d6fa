"""Compare how uncertain models are about sentences with one and with several correct translations.

The uncertainty about a sentence is the mean over its tokens, in bits. Its entropy measures all
uncertainty, the mutual information the part that samples of the model disagree about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from translations import score_translations

KINDS = ("entropy", "mutual_information")


@dataclass(frozen=True)
class Compared:
    """What is known of one model. Entries are None if it makes no translations or no samples."""

    bleu: float | None
    signature: str | None
    share_unambiguous: float | None  # of correct translations
    share_ambiguous: float | None
    entropy_unambiguous: float
    entropy_ambiguous: float
    entropy_auroc: (
        float  # how often an ambiguous sentence is less certain than another; 0.5: chance
    )
    mutual_information_unambiguous: float | None
    mutual_information_ambiguous: float | None
    mutual_information_auroc: float | None
    mutual_information_share: float | None  # of the entropy


def merge(evaluations: dict[str, dict[str, Any]], records: list[dict]) -> dict[str, Any]:
    """Join files of stochattn-evaluate to one, with a name and the new measures for each model."""
    first = next(iter(evaluations.values()))
    checkpoints = []
    for name, evaluation in evaluations.items():
        (checkpoint,) = evaluation["checkpoints"]
        checkpoints.append({**checkpoint, "name": name})
    merged = {**first, "checkpoints": checkpoints}
    for checkpoint, row in zip(checkpoints, compare(merged, records).values(), strict=True):
        new = {f"{kind}_{where}": getattr(row, f"{kind}_{where}") for kind in KINDS for where in
               ("ambiguous", "unambiguous", "auroc")}  # fmt: skip
        checkpoint["metrics"] = {**checkpoint["metrics"], **new}
    return merged


def compare(evaluation: dict[str, Any], records: list[dict]) -> dict[str, Compared]:
    """Return the comparison of all models in an evaluation, by name."""
    return {model["name"]: _compare(model, records) for model in evaluation["checkpoints"]}


def _compare(model: dict[str, Any], records: list[dict]) -> Compared:
    from sklearn.metrics import roc_auc_score

    examples = model["per_example"]
    if len(examples["id"]) != len(records):
        raise ValueError(f"{len(examples['id'])} of {len(records)} sentences were evaluated")
    ambiguous = [record["ambiguous"] for record in records]
    found: dict[str, float | None] = {}
    for kind in KINDS:
        values = [x / n for x, n in zip(examples[kind], examples["predictions"], strict=True)]
        sampled = kind == "entropy" or model["samples"] > 0
        for name, wanted in (("ambiguous", True), ("unambiguous", False)):
            chosen = [x for x, label in zip(values, ambiguous, strict=True) if label is wanted]
            found[f"{kind}_{name}"] = sum(chosen) / len(chosen) if sampled else None
        found[f"{kind}_auroc"] = float(roc_auc_score(ambiguous, values)) if sampled else None
    total = sum(examples["mutual_information"]) / sum(examples["entropy"])
    found["mutual_information_share"] = total if model["samples"] > 0 else None
    scores = dict.fromkeys(("bleu", "signature", "share_unambiguous", "share_ambiguous"))
    if "hypothesis" in examples:
        scores = vars(score_translations(records, examples["hypothesis"]))
    return Compared(**scores, **found)


def table(rows: dict[str, Compared]) -> list[str]:
    """Return the lines of a table for the terminal, one per model."""

    def cell(value: float | None, style: str) -> str:
        return "–" if value is None else format(value, style)

    def line(name: str, *cells: str) -> str:
        widths = (6, 8, 9, 9, 9, 8, 9, 10)
        return f"{name:<28}" + "".join(f"{x:>{n}}" for x, n in zip(cells, widths, strict=True))

    return [
        line("", "", "correct", "", "mutual", "inform.", "", "AUROC", ""),
        line("", "BLEU", "one", "several", "one", "several", "share", "entropy", "mut.inf."),
        *(
            line(
                name,
                cell(row.bleu, ".1f"),
                cell(row.share_unambiguous, ".1%"),
                cell(row.share_ambiguous, ".1%"),
                cell(row.mutual_information_unambiguous, ".4f"),
                cell(row.mutual_information_ambiguous, ".4f"),
                cell(row.mutual_information_share, ".1%"),
                cell(row.entropy_auroc, ".2f"),
                cell(row.mutual_information_auroc, ".2f"),
            )
            for name, row in rows.items()
        ),
        "one, several: sentences with one, with several correct translations.",
        "mutual inform.: in bits per token, and as a share of the entropy.",
        "AUROC: of finding the sentences with several; 0.5 is chance.",
    ]


def describe(model: dict[str, Any], shown: int = 3) -> list[str]:
    """Return lines for the terminal: the least certain predictions, with marked words."""
    lines = [f"least certain predictions of {model['name']}; *words*: attention varies most"]
    for example in model["least_certain"][:shown]:
        source, _, rest = example["text"].partition(" → ")
        if words := example.get("words"):
            source = " ".join(f"*{x['word']}*" if x["varies"] else x["word"] for x in words)
        lines.append(f"  {source} → {rest}")
        lines.append(
            f"    {example['prediction']} ({example['confidence']:.0%}, mutual information "
            f"{example['mutual_information']:.2f} bits), reference: {example['target']}"
        )
    return lines
