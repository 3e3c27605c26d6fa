"""Every method against plain fairseq of the same configuration, side by side in one process.

    python examples/benchmarks/speed.py                      # everything, as `make bench`
    python examples/benchmarks/speed.py --methods babn ct --backbones roberta --lengths 64 256
    python examples/benchmarks/speed.py --parts memory --output memory.json

Ratios are medians over pairs of neighbouring steps, with their quartiles. See README.md here.
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
from timing import Ratio, keep_memory, paired_ratio
from workload import generation, make_trainer, training_step, write_dictionaries

PARTS = ("train", "generate", "growth", "memory", "modules", "score")
GROWING = ("babn", "bam", "gan", "ct", "ot", "asa")
# What is done with the logits where all positions are projected on the vocabulary.
GATHERING = {
    "ignored": "all positions projected, those not masked ignored in the loss",
    "picked": "all positions projected, the masked ones picked",
}
MEMORY_LENGTH, LONG, GENERATED_LENGTH = 128, 512, 32


class Bench:
    """Runs comparisons, prints each, and keeps them as rows, in a file too where one is named."""

    def __init__(self, data: Path, pairs: int, output: Path | None = None) -> None:
        self.data, self.pairs, self.output = data, pairs, output
        self.rows: list[dict[str, Any]] = []
        self.built: dict[tuple[str, str | None], Trainer] = {}  # of the last comparison
        self.plain_search: Callable[[], None] | None = None

    def trainers(self, backbone: str, method: str) -> tuple[Trainer, Trainer]:
        """Of plain fairseq, and of the method; those of the last comparison where they fit."""
        wanted = [(backbone, None), (backbone, method)]
        self.built = {key: self.built[key] for key in wanted if key in self.built}
        for key in wanted:
            if key not in self.built:
                self.built[key] = make_trainer(self.data, flags_of(*key))
        return tuple(self.built[key] for key in wanted)

    def pairs_of(self, method: str, backbone: str, threads: int) -> int:
        """Fewer where no aim depends on it, or a turn of several updates is timed as one."""
        aims = [aim for aim in AIMS if (aim.method, aim.backbone) == (method, backbone)]
        if threads > 1 or not aims or aims[0].train is None:
            return min(self.pairs, 2)
        return self.pairs if METHODS[method].updates == 1 else min(self.pairs, 3)

    def train(self, method: str, backbone: str, length: int, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        plain, ours = self.trainers(backbone, method)
        updates = METHODS[method].updates
        steps = [training_step(trainer, length, updates) for trainer in (plain, ours)]
        pairs = self.pairs_of(method, backbone, threads)
        for trainer in (plain, ours) * (1 if pairs < 5 else 2):  # to warm up, an update will do
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
        torch.set_num_threads(1)
        # Models of their own, never to be trained: a search changes what they keep, for good.
        if self.plain_search is None:
            self.plain_search = generation(make_trainer(self.data, flags_of(backbone)), length)
        ours = generation(make_trainer(self.data, flags_of(backbone, method)), length)
        # One part in fifty is asked for: that takes more pairs.
        ratio = paired_ratio(self.plain_search, ours, self.pairs + 4, warm_up=1)
        aim = GENERATION_AIMS.get(method, GENERATION_AIM)
        row = {"part": "generate", "method": method, "backbone": backbone, "length": length}
        self.note(row, ratio, aim, threads=1)

    def memory(self, methods: list[str], backbone: str, length: int) -> None:
        def peak_of(method: str | None) -> float:
            return peak_memory(self.data, flags_of(backbone, method), length)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # a process each, one a core
            plain, *peaks = pool.map(peak_of, [None, *methods])
        for method, peak in zip(methods, peaks, strict=True):
            row = {"part": "memory", "method": method, "backbone": backbone, "length": length}
            aim = MEMORY_AIMS.get(method) if length == MEMORY_LENGTH else None
            self.note(row, peak / plain, aim)

    def modules(self) -> None:
        torch.set_num_threads(1)
        row = {"part": "module", "method": "babn", "backbone": "attention", "length": 100}
        what = "`babn` ÷ plain, the attention module alone (16 × 100 tokens, width 512, 8 heads)"
        self.note(row, attention_module_ratio(self.pairs), 1.90, what=what)
        row = {"part": "gathering", "method": "electra", "backbone": "electra", "length": 128}
        for kind, ratio in electra_gathering_ratios(self.data, self.pairs).items():
            what = f"ELECTRA-small, {GATHERING[kind]} ÷ gathering before"
            self.note(row, ratio, 1.30, what=what, at_least=True)

    def score(self) -> None:
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
        """Keep a row and print it; ``at_least`` where a larger ratio is the better one."""
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
        """All figures so far, as JSON: a run that is stopped has not been for nothing."""
        if self.output:
            versions = {"torch": torch.__version__, "cores": os.cpu_count(), "pairs": self.pairs}
            self.output.write_text(json.dumps({**versions, "rows": self.rows}, indent=1) + "\n")


def chosen_rows(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """(method, backbone, length): those named, or the rows of the table of aims."""
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
        bench.memory([m for m in methods if m in GROWING], "shallow", LONG)
    if "memory" in args.parts:
        bench.memory(methods, "transformer", MEMORY_LENGTH)
    if "modules" in args.parts:
        bench.modules()
    if "score" in args.parts:
        bench.score()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: all")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, help="default: the aims' own")
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of the longest sentence")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pairs", type=int, default=6, help="pairs of steps a ratio (default 6)")
    parser.add_argument(
        "--threads", nargs="+", type=int, default=[1], help="of training; 0 is all cores"
    )
    parser.add_argument("--output", type=Path, help="write the figures here, as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        write_dictionaries(Path(folder))
        run(args, Bench(Path(folder), args.pairs, args.output))


if __name__ == "__main__":
    main()
