"""Compare the cost of every method with plain fairseq of the same configuration.

    python examples/benchmarks/speed.py                      # all parts, one thread
    python examples/benchmarks/speed.py --methods babn ct --backbones roberta --lengths 64 256
    python examples/benchmarks/speed.py --parts memory --output memory.json

Both run in one process and take turns. A ratio is the median over pairs of neighbouring steps, with
quartiles. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from cases import (
    AIMS,
    BACKBONES,
    BASELINES,
    GENERATION_AIM,
    GENERATION_AIMS,
    LENGTHS,
    MEMORY_AIMS,
    METHODS,
    PLAIN_AT_TEST,
    arch_of,
    flags_of,
)
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.trainer import Trainer
from modules import attention_module_ratio, electra_gathering_ratios
from peak import peak_memory
from scoring import SAMPLES, scoring_ratio
from timing import Ratio, paired_ratio
from workload import generation, make_trainer, training_step, write_dictionaries

from fairseq_stochattn.core.memory import keep_freed_memory

PARTS = ("train", "generate", "growth", "memory", "modules", "score")
GROWING = ("babn", "bam", "gan", "ct", "ot", "asa")
# Names of the ratios of modules.electra_gathering_ratios in the table.
GATHERING = {
    "ignored": "project all positions to the vocabulary and ignore the unmasked ones in the loss",
    "picked": "project all positions to the vocabulary, then pick the masked ones",
}
MEMORY_LENGTH, GENERATED_LENGTH = 128, 32


class Bench:
    """Runs comparisons, prints them and keeps them as rows; writes the rows to ``output``."""

    def __init__(self, data: Path, pairs: int, output: Path | None = None) -> None:
        self.data, self.pairs, self.output = data, pairs, output
        self.rows: list[dict[str, Any]] = []
        self.built: dict[tuple[str, str | None], Trainer] = {}  # for the last comparison
        self.plain_search: Callable[[], None] | None = None

    def trainers(self, backbone: str, method: str) -> tuple[Trainer, Trainer]:
        """Return the trainers of plain fairseq and of the method, reusing those built last."""
        wanted = [(backbone, None), (backbone, method)]
        self.built = {key: self.built[key] for key in wanted if key in self.built}
        for key in wanted:
            if key not in self.built:
                self.built[key] = make_trainer(self.data, flags_of(*key))
        return tuple(self.built[key] for key in wanted)

    def pairs_of(self, method: str, backbone: str, threads: int) -> int:
        """Return the number of pairs: fewer without an aim, and if several updates are one step."""
        aims = [aim for aim in AIMS if (aim.method, aim.backbone) == (method, backbone)]
        if threads > 1 or not aims or aims[0].train is None:
            return min(self.pairs, 2)
        return self.pairs if METHODS[method].updates == 1 else min(self.pairs, 3)

    def train(self, method: str, backbone: str, length: int, threads: int = 1) -> None:
        """Compare training steps."""
        torch.set_num_threads(threads)
        plain, ours = self.trainers(backbone, method)
        updates = METHODS[method].updates
        steps = [training_step(trainer, length, updates) for trainer in (plain, ours)]
        pairs = self.pairs_of(method, backbone, threads)
        for trainer in (plain, ours) * (1 if pairs < 5 else 2):  # warm up with single updates
            training_step(trainer, length)()
        ratio = paired_ratio(*steps, pairs, warm_up=0)
        count = [sum(p.numel() for p in t.model.parameters()) for t in (plain, ours)]
        aims = [a for a in AIMS if (a.method, a.backbone, a.length) == (method, backbone, length)]
        self.note(
            {"part": "train", "method": method, "backbone": backbone, "length": length},
            ratio,
            aims[0].train if aims and threads == 1 else None,
            threads=threads,
            parameters=count[1] / count[0],
        )

    def generate(self, method: str, backbone: str, length: int) -> None:
        """Compare beam searches."""
        torch.set_num_threads(1)
        # New models, because a beam search leaves state in a model that training must not have.
        if self.plain_search is None:
            self.plain_search = generation(make_trainer(self.data, flags_of(backbone)), length)
        ours = generation(make_trainer(self.data, flags_of(backbone, method)), length)
        # The aim is within 2 %, which needs more pairs.
        ratio = paired_ratio(self.plain_search, ours, self.pairs + 4, warm_up=1)
        aim = GENERATION_AIMS.get(method, GENERATION_AIM)
        row = {"part": "generate", "method": method, "backbone": backbone, "length": length}
        self.note(row, ratio, aim, threads=1)

    def memory(self, methods: list[str], backbone: str, length: int) -> None:
        """Compare the peak memory of training."""

        def peak_of(method: str | None) -> float:
            return peak_memory(self.data, flags_of(backbone, method), length)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # one process per core
            plain, *peaks = pool.map(peak_of, [None, *methods])
        for method, peak in zip(methods, peaks, strict=True):
            row = {"part": "memory", "method": method, "backbone": backbone, "length": length}
            aim = MEMORY_AIMS.get(method) if length == MEMORY_LENGTH else None
            self.note(row, peak / plain, aim)

    def modules(self) -> None:
        """Compare parts of models."""
        torch.set_num_threads(1)
        row = {"part": "module", "method": "babn", "backbone": "attention", "length": 100}
        what = "`babn` ÷ plain, the attention module alone (16 × 100 tokens, width 512, 8 heads)"
        self.note(row, attention_module_ratio(self.pairs), 1.90, what=what)
        row = {"part": "gathering", "method": "electra", "backbone": "electra", "length": 128}
        for kind, ratio in electra_gathering_ratios(self.data, self.pairs).items():
            what = f"ELECTRA-small: {GATHERING[kind]} ÷ project only the masked positions"
            self.note(row, ratio, 1.30, what=what, at_least=True)

    def score(self) -> None:
        """Compare the commands that score with samples of the attention."""
        row = {"part": "score", "method": "babn", "backbone": "shallow", "length": 30}
        what = f"{SAMPLES} samples, `stochattn-evaluate` ÷ {SAMPLES} runs of `fairseq-generate`"
        self.note(row, scoring_ratio(self.data, pairs=1), 0.60, what=what)

    def note(
        self,
        row: dict[str, Any],
        ratio: Ratio | float,
        aim: float | None = None,
        at_least: bool = False,
        **more: Any,
    ) -> None:
        """Keep a row and print it; with ``at_least``, larger ratios are better."""
        figures = ratio.as_dict() if isinstance(ratio, Ratio) else {"median": round(ratio, 4)}
        self.rows.append({**row, "aim": aim, "at_least": at_least, **figures, **more})
        self.write()
        verdict = ""
        if aim is not None:
            found = round(figures["median"], 2)
            met = found >= aim if at_least else found <= aim
            verdict = f"  aim {'≥' if at_least else '≤'} {aim:.2f} {'met' if met else 'MISSED'}"
        threads = f", {more['threads']} threads" if more.get("threads", 1) > 1 else ""
        size = f"{row['length']:4} tokens{threads}"
        figure = ratio if isinstance(ratio, Ratio) else f"{ratio:.3f}"
        line = f"{row['part']:9} {row['method']:13} {row['backbone']:14} {size}  {figure}{verdict}"
        print(line, flush=True)

    def write(self) -> None:
        """Write all rows so far as JSON, so that a stopped run keeps its results."""
        if self.output:
            versions = {"torch": torch.__version__, "cores": os.cpu_count(), "pairs": self.pairs}
            self.output.write_text(json.dumps({**versions, "rows": self.rows}, indent=1) + "\n")


def chosen_rows(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield (method, backbone, length) as chosen by the flags, by default the rows of AIMS."""
    if args.backbones or args.lengths:
        for backbone in args.backbones or ["transformer"]:
            for length in args.lengths or [64]:
                for method in args.methods or METHODS:
                    if arch_of(backbone, method) in ARCH_MODEL_REGISTRY:
                        yield method, backbone, length
        return
    for aim in AIMS:
        if not args.methods or aim.method in args.methods:
            yield aim.method, aim.backbone, aim.length


def run(args: argparse.Namespace, bench: Bench) -> None:
    """Run the chosen parts."""
    methods = args.methods or list(METHODS)
    if "train" in args.parts:
        for threads in args.threads:
            for row in chosen_rows(args):
                if threads == 1 or args.methods or row[0] not in BASELINES:
                    bench.train(*row, threads=threads or os.cpu_count() or 1)
    if "generate" in args.parts:
        for method in methods:
            if method not in PLAIN_AT_TEST:
                bench.generate(method, "shallow", GENERATED_LENGTH)
    if "growth" in args.parts:
        for method in args.methods or GROWING:
            for length in args.lengths or LENGTHS:
                bench.train(method, "shallow", length)
        bench.memory([m for m in methods if m in GROWING], "shallow", LENGTHS[-1])
    if "memory" in args.parts:
        bench.memory(methods, "transformer", MEMORY_LENGTH)
    if "modules" in args.parts:
        bench.modules()
    if "score" in args.parts:
        bench.score()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--methods", nargs="+", choices=METHODS, help="default: all")
    add("--backbones", nargs="+", choices=BACKBONES, help="default: those of the aims")
    add(
        "--lengths", nargs="+", type=int, metavar="N",
        help="tokens of the longest sentence (default: those of the aims)",
    )  # fmt: skip
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--pairs", type=int, default=6, metavar="N", help="pairs of steps per ratio (default: 6)")
    add(
        "--threads", nargs="+", type=int, default=[1], metavar="N",
        help="numbers of threads for training; 0 is all cores (default: 1)",
    )  # fmt: skip
    add("--output", type=Path, metavar="FILE", help="write the figures to FILE as JSON")
    return parser


def main() -> None:
    args = build_parser().parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        write_dictionaries(Path(folder))
        run(args, Bench(Path(folder), args.pairs, args.output))


if __name__ == "__main__":
    main()
