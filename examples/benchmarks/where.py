"""Print the time of each operator in a training step of a method, minus that of a plain step.

python examples/benchmarks/where.py --method babn --length 128
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path

import torch
from cases import BACKBONES, METHODS, flags_of
from torch.profiler import ProfilerActivity, profile
from workload import make_trainer, training_step, write_dictionaries

from fairseq_stochattn.core.memory import keep_freed_memory


def milliseconds(data: Path, flags: list[str], length: int, steps: int) -> dict[str, float]:
    """Return the own time of every operator in milliseconds per step."""
    step = training_step(make_trainer(data, flags), length)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    entries = profiler.key_averages()
    return {entry.key: entry.self_cpu_time_total / 1000 / steps for entry in entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--method", choices=METHODS, required=True, help="method to compare with plain fairseq")
    add("--backbone", choices=BACKBONES, default="transformer", help="default: %(default)s")
    add("--length", type=int, default=64, help="tokens of the longest sentence (default: 64)")
    add("--steps", type=int, default=3, help="steps to average over (default: 3)")
    add("--rows", type=int, default=20, help="operators to print (default: 20)")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_dictionaries(data)
        plain, ours = (
            milliseconds(data, flags_of(args.backbone, method), args.length, args.steps)
            for method in (None, args.method)
        )
    extra = {name: time - plain.get(name, 0.0) for name, time in ours.items()}
    extra.update({name: -time for name, time in plain.items() if name not in ours})
    total = sum(plain.values())
    print(f"plain step: {total:.0f} ms, {args.method}: {sum(ours.values()):.0f} ms; differences:")
    for name in sorted(extra, key=lambda key: -abs(extra[key]))[: args.rows]:
        share = 100 * extra[name] / total
        print(f"{extra[name]:+8.1f} ms {share:+6.1f} %  {name}")


if __name__ == "__main__":
    main()
