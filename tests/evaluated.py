"""An example of the JSON that ``stochattn-evaluate --json`` writes."""

from __future__ import annotations

from typing import Any


def checkpoint(name: str, shift: float, **more: Any) -> dict[str, Any]:
    """Return the entry of one checkpoint; with a larger ``shift`` it is less calibrated."""
    bins = []
    for i in range(10):
        count = 0 if i < 2 else 3 * i * i
        confidence = i / 10 + 0.06 if count else None
        accuracy = max(0.0, i / 10 + 0.05 - shift) if count else None
        bins.append(
            {
                **{"low": i / 10, "high": (i + 1) / 10, "count": count},
                **{"confidence": confidence, "accuracy": accuracy},
            }
        )
    coverage = [i / 50 for i in range(1, 51)]
    grid = [i / 20 for i in range(41)]
    return {
        "path": f"{name}.pt",
        "name": name,
        "arch": "transformer_babn",
        "metrics": {
            **{
                "bleu": 34.5,
                "accuracy": 81.25,
                "nll": 0.62,
                "ece": shift,
                "oe": shift / 2,
                "brier": 0.27,
            },
            **{"pavpu": 0.83, "predictive_entropy": 0.71, "expected_entropy": 0.55},
            **{"mutual_information": 0.16, "aurc": 0.05 + shift},
        },
        "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "reliability": bins,
        "risk_coverage": {"coverage": coverage, "risk": [(0.2 + shift) * x**2 for x in coverage]},
        "least_certain": [
            {
                "id": number,
                "text": text,
                "prediction": "half past two",
                "target": target,
                "confidence": 0.31 + 0.02 * number,
                "entropy": 1.4 - 0.1 * number,
                "mutual_information": 0.4 - 0.03 * number,
            }
            for number, (text, target) in enumerate(
                [
                    ("um halb drei <script>alert('x')</script> & so weiter", "2:30"),
                    ("Er sagt, dass Paul um halb drei ankommt .", "half past two"),
                    ("am 3. Mai, ein sehr viel längerer Satz, der umbrochen werden muss", "May 3"),
                ]
            )
        ],
        "out_of_domain": {
            "data": "other",
            "auroc": {"entropy": 0.91, "mutual_information": 0.87},
            "entropy_cdf": {
                "entropy": grid,
                "in_domain": [1 - (1 - x / 2) ** 4 for x in grid],
                "out_of_domain": [(x / 2) ** 2 for x in grid],
            },
        },
        **more,
    }


def evaluation(**more: Any) -> dict[str, Any]:
    """Return an evaluation of two checkpoints; ``more`` overrides its entries."""
    return {
        **{"data": "data-bin", "task": "translation", "split": "valid", "samples": 20, "seed": 1},
        "checkpoints": [checkpoint("checkpoint_best", 0.02), checkpoint("plain_last", 0.14)],
        "comparisons": [
            {
                "of": "checkpoint_best",
                "with": "plain_last",
                "bleu_difference": 0.7,
                "p_value": 0.021,
                "method": "paired bootstrap, 1000 resamples",
            }
        ],
        **more,
    }
