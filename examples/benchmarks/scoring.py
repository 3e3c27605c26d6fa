"""CPU time of stochattn-evaluate with K samples, divided by that of K runs of fairseq-generate.

Each run of fairseq-generate scores the references under one sample of the attention. All are real
commands on the same checkpoint and sentences; the times include the start of the process. Only one
of the K runs is timed and multiplied by K, because all of them do the same work.
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
from fairseq.trainer import Trainer
from timing import Ratio
from workload import make_trainer, sentences

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, LENGTH = 20, 30
BATCHES = 6  # of 512 tokens per language: about 100 sentences


def cpu_seconds(*command: str) -> float:
    """Run a command with one thread and return its CPU time; exit if it fails."""
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


def write_data(trainer: Trainer, data: Path) -> None:
    """Write random sentences in fairseq's binary format, and a checkpoint."""
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
    """Return the time of one stochattn-evaluate over that of ``SAMPLES`` fairseq-generate runs."""
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
        evaluate = cpu_seconds(
            "stochattn-evaluate", *common, "--samples", str(SAMPLES), "--no-bleu"
        )
        ratios.append(evaluate / (SAMPLES * one_run))
        times.append(SAMPLES * one_run)
    low, _, high = statistics.quantiles(ratios, n=4) if pairs > 1 else (ratios[0],) * 3
    return Ratio(statistics.median(ratios), low, high, pairs, statistics.median(times))
