"""Trains every ordered pair of methods on three backbones and writes docs/pairs.md: ``make pairs``.

    python tests/pairs.py --output docs/pairs.md

``test_pairs.py`` uses the functions of this file for a sample of the pairs.
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import corpora
import fairseq_stochattn.models  # noqa: F401  (registers the methods and archs)
import runner
import sizes
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.files import atomic_file
from fairseq_stochattn.core.masking import MaskingMethod
from fairseq_stochattn.core.method import METHODS

NAMES = [name for name, cls in METHODS.items() if cls.__module__.startswith("fairseq_stochattn.")]
PAIRS = list(permutations(NAMES, 2))
# Flags without which a method cannot be named.
FLAGS = {"alignment": "ct", "cell_dropout": "0.3", "attention_layerdrop": 0.3}
BACKBONES = {
    "transformer": sizes.TRANSFORMER,
    "roberta": (*sizes.ROBERTA, *sizes.MASKED_LM),
    "transformer_lm": sizes.TRANSFORMER_LM,
}
UPDATES = 3
# One round of AttendOut ends after two updates, on few sentences.
ROUND = ("--attendout-steps", 2, "--attendout-samples", 4)
Refusals = dict[tuple[str, str], str | None]


def own_flags(methods: Sequence[str]) -> dict[str, object]:
    """Return the flags that the methods need, by name."""
    return {flag: FLAGS[flag] for name in methods for flag in METHODS[name].arch_defaults}


def criterion(methods: Sequence[str]) -> str:
    """Return a criterion that trains all of the methods."""
    if "attendout" in methods:
        return "attendout"
    if any(issubclass(METHODS[name], MaskingMethod) for name in methods):
        return "asa"
    return "elbo" if {"babn", "bam"} & set(methods) else "attention_losses"


def refusal(data: Path, backbone: str, *methods: str) -> str | None:
    """Train for three updates; return the message if fairseq-train refuses, otherwise None.

    Every number that it logs, in training and in the validation after it, must be finite.
    """
    flags = ("--arch", f"{backbone}_deterministic", *BACKBONES[backbone])
    flags = (*flags, "--attention", ",".join(methods), "--criterion", criterion(methods))
    for name, value in own_flags(methods).items():
        flags = (*flags, f"--{name.replace('_', '-')}", value)
    if {"babn", "bam"} & set(methods):
        flags = (*flags, "--kl-anneal-updates", 0)
    if "attendout" in methods:
        flags = (*flags, *ROUND)
    short = ("--max-update", UPDATES, "--max-tokens", 100, "--no-save")
    try:
        output = runner.train(data, data / "run", *flags, *short)
    except UsageError as error:
        return str(error).partition(": ")[2]
    assert len(output.losses()) == UPDATES, methods
    for row in (*output.stats["train_inner"], *output.stats["valid"]):
        numbers = {name: value for name, value in row.items() if value is not None}
        assert len(numbers) > len(row) / 2, row
        for name, value in numbers.items():
            assert math.isfinite(float(value)), (backbone, methods, name, value)
    return None


def general(reason: str, first: str, second: str) -> str:
    """Return a message with FIRST and SECOND instead of the names of the methods."""
    for name, stands_for in ((first, "FIRST"), (second, "SECOND")):
        reason = re.sub(rf"(?<![\w-]){name}(?![\w-])", stands_for, reason)
    return reason


def table(refusals: Refusals, reasons: list[str]) -> Iterator[str]:
    """Yield the lines of a table; a refused pair has the number of its reason."""
    yield f"| first ↓ second → | {' | '.join(f'`{name}`' for name in NAMES)} |"
    yield "|---" * (len(NAMES) + 1) + "|"
    for first in NAMES:
        cells = ["–" if first == second else "trains" for second in NAMES]
        for column, second in enumerate(NAMES):
            if reason := refusals.get((first, second)):
                cells[column] = f"refused [{reasons.index(general(reason, first, second)) + 1}]"
        yield f"| `{first}` | {' | '.join(cells)} |"


def page(results: dict[str, Refusals]) -> Iterator[str]:
    """Yield the lines of the page: a table for each backbone, and the reasons."""
    rows = [(pair, reason) for refusals in results.values() for pair, reason in refusals.items()]
    reasons = list(dict.fromkeys(general(reason, *pair) for pair, reason in rows if reason))
    refused = sum(reason is not None for _, reason in rows)
    yield f"""# Pairs of methods

`--attention first,second` applies two methods in this order. `make pairs` runs fairseq-train for
every ordered pair on {len(results)} backbones, {UPDATES} updates each, with a criterion that trains
both methods, and writes this page (`python tests/pairs.py --output docs/pairs.md`).

- *trains*: all logged numbers of training and validation are finite.
- *refused*: the command ends at once with one line. The number in brackets refers to the list of
  messages [below](#reasons), where FIRST and SECOND stand for the names of the methods.

Of {len(rows)} pairs, {len(rows) - refused} train and {refused} are refused."""
    for backbone, refusals in results.items():
        yield from ("", f"## {backbone}", "", *table(refusals, reasons))
    yield from ("", "## Reasons", "")
    yield from (f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))


def main(argv: Sequence[str] | None = None) -> int:
    """Train all pairs and write the page."""
    parser = argparse.ArgumentParser(description="Train every ordered pair of methods.")
    parser.add_argument("--output", type=Path, required=True, help="Markdown page to write")
    output = parser.parse_args(argv).output
    results: dict[str, Refusals] = {}
    with tempfile.TemporaryDirectory() as name:
        pairs = corpora.translation(Path(name) / "pairs", 60)
        lines = corpora.language_model(Path(name) / "lines", 60)
        for backbone in BACKBONES:
            data = pairs if backbone == "transformer" else lines
            results[backbone] = {pair: refusal(data, backbone, *pair) for pair in PAIRS}
            refused = sum(reason is not None for reason in results[backbone].values())
            print(f"{backbone}: {len(PAIRS) - refused} pairs train, {refused} are refused")
    with atomic_file(output) as partial:
        partial.write_text("\n".join(page(results)) + "\n")
    return 0


if __name__ == "__main__":
    for handler in logging.getLogger().handlers:  # fairseq's log of 330 runs is not wanted here
        handler.setLevel(logging.ERROR)
    raise SystemExit(main())
