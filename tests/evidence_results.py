"""Synthetic results of a suite in a temporary folder, and the modules of examples/evidence."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU

import runner

FOLDER = runner.ROOT / "examples" / "evidence"
SEEDS = (1, 2, 3, 4, 5)
SUITE = """
title = "Small translation"
text = "Synthetic results."
baseline = "plain"
seeds = [1, 2, 3, 4, 5]
report = ["bleu", "ece", "spread"]
[measures]
bleu = {label = "BLEU", digits = 2, better = "higher"}
ece = {label = "ECE, %", digits = 3, better = "lower", scale = 100}
spread = {label = "spread", digits = 4, better = "neither"}
[methods]
plain = {label = "plain"}
alpha = {label = "Alpha"}
beta = {label = "Beta", note = "shares models."}
gamma = {label = "Gamma"}
[readme]
measures = ["bleu"]
methods = ["alpha", "gamma"]
"""


def _load_table() -> ModuleType:
    """Return table.py under a name of its own: examples/benchmarks has a table.py, too."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    spec = importlib.util.spec_from_file_location("evidence_table", FOLDER / "table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence_table"] = module
    spec.loader.exec_module(module)
    return module


table = _load_table()


@dataclass
class Project:
    """A folder with suites, results, docs and a README, as table.py expects them."""

    root: Path
    name: str = "small"
    values: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)

    @classmethod
    def create(cls, root: Path, suite: str = SUITE) -> Project:
        for folder in ("suites", "results", "docs"):
            (root / folder).mkdir()
        (root / "README.md").write_text(
            "first\n<!-- evidence -->\nouter\n<!-- /evidence -->\nlast\n"
        )
        project = cls(root)
        (root / "suites" / f"{project.name}.toml").write_text(suite)
        return project

    def path(self, method: str, seed: int, task: str = "") -> Path:
        """Return the path of a result."""
        stem = f"{task}-{method}" if task else method
        return self.root / "results" / self.name / f"{stem}-seed{seed}.json"

    def add(
        self, method: str, seed: int, measures: dict[str, float], task: str = "", **more: Any
    ) -> Path:
        """Write one result and return its path."""
        self.values[method, seed] = measures
        identity = {"suite": self.name, "task": task or None, "method": method, "seed": seed}
        costs = {"seconds": 9.0, "cpu_seconds": 8.0, "step_seconds": 0.1}
        rest = {"split": "test", "settings": {}, "versions": {}, "commit": "c0ffee", "meters": {}}
        path = more.pop("path", self.path(method, seed, task))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**identity, **rest, **costs, "measures": measures, **more}))
        return path

    def add_all(self, method: str, seeds: Iterable[int], make: Callable[[int], dict]) -> None:
        """Write one result per seed with the measures ``make(seed)``."""
        for seed in seeds:
            self.add(method, seed, make(seed))

    def by_seed(self, method: str, measure: str) -> list[float]:
        """Return a measure of a method in the order of the seeds."""
        found = sorted((seed, m) for (name, seed), m in self.values.items() if name == method)
        return [measures[measure] for _, measures in found]

    def run(self, *args: str) -> int:
        """Run table.py on this folder and return its exit status."""
        folders = [f"--{name}" for name in ("suites", "results", "docs")]
        paths = [str(self.root / name) for name in ("suites", "results", "docs")]
        words = [word for pair in zip(folders, paths, strict=True) for word in pair]
        return table.main([*args, *words])

    def page(self, name: str = "") -> str:
        """Return the text of a page of docs/evidence, by default that of the suite."""
        return (self.root / "docs" / "evidence" / (name or f"{self.name}.md")).read_text()

    def readme(self) -> str:
        """Return the text of the project's README."""
        return (self.root / "README.md").read_text()

    def files(self) -> dict[str, bytes]:
        """Return the content of all files."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    def rows(self, heading: str, page: str = "") -> dict[str, list[str]]:
        """Return the table below a heading: first cell → the other cells. The header is ""."""
        below = (page or self.page()).split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
        lines = [line for line in below.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        return {"": cells[0][1:], **{row[0]: row[1:] for row in cells[2:]}}


def measures(level: float, seed: int) -> dict[str, float]:
    """Return measures that vary with the seed around a level, the same in every call."""
    rng = np.random.default_rng([seed, round(1000 * (10 + level))])
    noise = rng.normal(size=3)
    return {
        "bleu": 30 + level + 0.1 * noise[0],
        "ece": 0.05 + 0.001 * noise[1] - 0.01 * level,
        "spread": 0.1 + level / 100 + 0.001 * noise[2],
    }


WORDS = ("the", "a", "dog", "cat", "runs", "over", "street", "man", "woman", "with", "red", "hat")


def references(sentences: int) -> list[str]:
    """Return random sentences of 1 to 12 words."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(sentences)]


def translations(correct: Sequence[str], share: float, seed: int) -> list[str]:
    """Return the sentences with each word kept with probability ``share``."""
    rng = random.Random(seed)
    return [
        " ".join(w if rng.random() < share else rng.choice(WORDS) for w in sentence.split())
        for sentence in correct
    ]


def bleu_statistics(hypotheses: Sequence[str], correct: Sequence[str]) -> list[list[int]]:
    """Return the statistics of every sentence, in the order of the result files."""
    scorer = BLEU(effective_order=True)
    pairs = zip(hypotheses, correct, strict=True)
    scores = [scorer.sentence_score(hypothesis, [reference]) for hypothesis, reference in pairs]
    return [[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in scores]
