"""Every method against plain fairseq of the same configuration, side by side in one process.

    python examples/benchmarks/speed.py                      # the table of aims
    python examples/benchmarks/speed.py --methods babn ct --backbones roberta --lengths 64 256
    python examples/benchmarks/speed.py --parts growth memory --output speed.json

Ratios are medians over pairs of neighbouring steps, with their quartiles. See README.md here.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cases import (
    AIMS,
    BACKBONES,
    GENERATION_AIM,
    GENERATION_AIMS,
    LENGTHS,
    METHODS,
    arch_of,
    flags_of,
)
from fairseq.models import ARCH_MODEL_REGISTRY
from modules import attention_module_ratio, electra_gathering_ratio
from peak import peak_memory
from timing import Ratio, keep_memory, paired_ratio
from workload import generation, make_trainer, training_step, write_dictionaries

PARTS = ("train", "generate", "growth", "memory", "modules")
GROWING = ("babn", "bam", "gan", "ct", "ot")
MEMORY_LENGTH = 128


class Bench:
    """Runs comparisons and keeps plain trainers, which several methods share."""

    def __init__(self, data: Path, pairs: int) -> None:
        self.data, self.pairs = data, pairs
        self.results: list[dict[str, Any]] = []

    def trainer(self, backbone: str, method: str | None = None) -> Any:
        return make_trainer(self.data, flags_of(backbone, method))

    def train(self, method: str, backbone: str, length: int, pairs: int | None = None) -> Ratio:
        plain, ours = self.trainer(backbone), self.trainer(backbone, method)
        ratio = paired_ratio(
            training_step(plain, length), training_step(ours, length), pairs or self.pairs
        )
        count = [sum(p.numel() for p in t.model.parameters()) for t in (plain, ours)]
        self.note("train", ratio, method, backbone, length, parameters=count[1] / count[0])
        return ratio

    def generate(self, method: str, backbone: str, length: int) -> Ratio:
        plain, ours = self.trainer(backbone), self.trainer(backbone, method)
        ratio = paired_ratio(generation(plain, length), generation(ours, length), self.pairs)
        self.note("generate", ratio, method, backbone, length)
        return ratio

    def note(
        self, part: str, ratio: Ratio, method: str, backbone: str, length: int, **more: float
    ) -> None:
        aim = aim_of(part, method, backbone, length)
        threads = torch.get_num_threads()
        row = {"part": part, "method": method, "backbone": backbone, "length": length}
        row.update(threads=threads, aim=aim, **ratio.as_dict(), **more)
        self.results.append(row)
        verdict = (
            "" if aim is None else f"  aim {aim:.2f} {'met' if ratio.median <= aim else 'MISSED'}"
        )
        print(f"{part:9} {method:14} {backbone:14} {length:4} tokens  {ratio}{verdict}", flush=True)


def aim_of(part: str, method: str, backbone: str, length: int) -> float | None:
    if part == "train":
        rows = [a for a in AIMS if (a.method, a.backbone, a.length) == (method, backbone, length)]
        return rows[0].train if rows else None
    if part == "generate":
        return GENERATION_AIMS.get(method, GENERATION_AIM)
    return None


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
        for row in chosen_rows(args):
            bench.train(*row)
    if "generate" in args.parts:
        for method in methods:
            if METHODS[method].infix:
                bench.generate(method, "shallow", 32)
    if "growth" in args.parts:
        for method in args.methods or GROWING:
            for length in args.lengths or LENGTHS:
                bench.train(method, "shallow", length, pairs=max(2, bench.pairs // 2))
    if "memory" in args.parts:
        plain = peak_memory(bench.data, flags_of("transformer"), MEMORY_LENGTH)
        for method in methods:
            ratio = peak_memory(bench.data, flags_of("transformer", method), MEMORY_LENGTH) / plain
            row = {"part": "memory", "method": method, "length": MEMORY_LENGTH, "median": ratio}
            bench.results.append(row)
            print(f"memory    {method:14} {MEMORY_LENGTH:4} tokens  {ratio:.3f}", flush=True)
    if "modules" in args.parts:
        bench.note("module", attention_module_ratio(bench.pairs), "babn", "attention", 100)
        gathering = electra_gathering_ratio(bench.data, bench.pairs)
        bench.note("gathering", gathering, "electra", "electra_small", 128)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: all")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, help="default: the aims' own")
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of the longest sentence")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pairs", type=int, default=9, help="pairs of steps a ratio (default 9)")
    parser.add_argument("--threads", type=int, default=1, help="0 is all cores (default 1)")
    parser.add_argument("--output", type=Path, help="write the figures here, as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    keep_memory()
    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        write_dictionaries(Path(folder))
        bench = Bench(Path(folder), args.pairs)
        run(args, bench)
    if args.output:
        args.output.write_text(json.dumps(bench.results, indent=1) + "\n")


if __name__ == "__main__":
    main()
