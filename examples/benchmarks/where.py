"""Where the time of a training step goes: operators by their own time, a method beside plain.

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
from timing import keep_memory
from torch.profiler import ProfilerActivity, profile
from workload import make_trainer, training_step, write_dictionaries


def milliseconds(data: Path, flags: list[str], length: int, steps: int) -> dict[str, float]:
    """Own time of every operator, a step."""
    step = training_step(make_trainer(data, flags), length)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as measured:
        for _ in range(steps):
            step()
    found = measured.key_averages()
    return {entry.key: entry.self_cpu_time_total / 1000 / steps for entry in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--backbone", choices=BACKBONES, default="transformer")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    keep_memory()
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
    print(
        f"a plain step {total:.0f} ms, {args.method} {sum(ours.values()):.0f} ms; the difference:"
    )
    for name in sorted(extra, key=lambda key: -abs(extra[key]))[: args.rows]:
        share = 100 * extra[name] / total
        print(f"{extra[name]:+8.1f} ms {share:+6.1f} %  {name}")


if __name__ == "__main__":
    main()
