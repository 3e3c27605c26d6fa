"""K samples of the attention in one command, over K runs of fairseq-generate that score.

Both are real commands on the same checkpoint and sentences, from the start of the process on. CPU
time of the processes; of the K runs, which are alike, one is timed.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from cases import flags_of
from fairseq.data import indexed_dataset
from timing import Ratio
from workload import make_trainer, sentences

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, LENGTH, BATCHES = 20, 30, 6  # of 512 tokens a side: a hundred sentences


def cpu_seconds(*command: str) -> float:
    """Of a process with one thread, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_data(trainer, data: Path) -> None:
    """Random sentences, binarised, and a checkpoint."""
    sides = (("de", trainer.task.src_dict, 0), ("en", trainer.task.tgt_dict, 1))
    for language, dictionary, side in sides:
        prefix = str(data / f"test.de-en.{language}")
        builder = indexed_dataset.make_builder(
            f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary)
        )
        for batch in range(BATCHES):
            for tokens in sentences(dictionary, LENGTH, seed=2 * batch + side):
                builder.add_item(tokens.to(torch.int32))
        builder.finalize(f"{prefix}.idx")
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(data / "babn.pt"), {"train_iterator": {"epoch": 1}})


def scoring_ratio(data: Path, pairs: int) -> Ratio:
    write_data(make_trainer(data, flags_of("shallow", "babn")), data)
    device = () if torch.cuda.is_available() else ("--cpu",)
    common = (str(data), "--path", str(data / "babn.pt"), "--gen-subset", "test", *device)
    plugin = ("--user-dir", str(ROOT / "fairseq_stochattn"))
    ratios, times = [], []
    for _ in range(pairs):
        one_run = cpu_seconds(
            "fairseq-generate", *common, *plugin, "--score-reference",
            "--retain-dropout", "--retain-dropout-modules", "babn",
        )  # fmt: skip
        ours = cpu_seconds("stochattn-evaluate", *common, "--samples", str(SAMPLES), "--no-bleu")
        ratios.append(ours / (SAMPLES * one_run))
        times.append(SAMPLES * one_run)
    low, _, high = statistics.quantiles(ratios, n=4) if pairs > 1 else (ratios[0],) * 3
    return Ratio(statistics.median(ratios), low, high, pairs, statistics.median(times))
