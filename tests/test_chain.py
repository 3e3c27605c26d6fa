"""From nothing to predictions in four commands, with another attention method at every stage."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

import commands
import sizes

MLM = ("--task", "masked_lm", "--tokens-per-sample", 16, "--sample-break-mode", "eos")
STILL = ("--dropout", 0, "--attention-dropout", 0, "--max-positions", 32)
LR, UPDATES = 1e-3, 4


def backbone(checkpoint: Path) -> dict[str, Tensor]:
    """The encoder's parameters without those of methods and heads."""
    model = torch.load(checkpoint, weights_only=True)["model"]
    foreign = ("attention_methods.", ".shared.", "lm_head.", "classification_heads.")
    return {name: x for name, x in model.items() if not any(part in name for part in foreign)}


def train(data: Path, save: Path, arch: str, updates: int, *flags: object) -> Path:
    size = ("--arch", arch, *sizes.ROBERTA, *STILL, "--lr", LR, "--max-update", updates)
    run = commands.run(
        "fairseq-train",
        *(data, "--user-dir", commands.USER_DIR, *commands.TRAIN, "--save-dir", save),
        *(*size, *flags),
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return save / "checkpoint_last.pt"


def moved(before: Path, after: Path) -> float:
    """The largest change of any of the encoder's numbers."""
    old, new = backbone(before), backbone(after)
    assert old.keys() == new.keys()
    return max((new[name] - old[name]).abs().max().item() for name in old)


def test_pre_training_goes_on_with_another_method_and_is_fine_tuned(
    lm_data: Path, classification_data: Path, tmp_path: Path
) -> None:
    """MLM with babn → MLM with ct on top → fine-tuning with bam → predictions.

    Every stage starts from the one before: Adam moves a weight by no more than its rate an update.
    """
    first = train(lm_data, tmp_path / "mlm", "roberta_babn", 20, *MLM, "--criterion", "elbo")
    second = train(
        *(lm_data, tmp_path / "more", "roberta_alignment", UPDATES, *MLM),
        *("--criterion", "alignment", "--alignment", "ct", "--finetune-from-model", first),
    )
    assert 0.1 * LR < moved(first, second) < 1.1 * UPDATES * LR
    third = train(
        *(classification_data, tmp_path / "classes", "roberta_bam", UPDATES),
        *("--task", "sentence_prediction", "--num-classes", 5, "--criterion", "elbo"),
        *("--finetune-from-model", second),
    )
    assert 0.1 * LR < moved(second, third) < 1.1 * UPDATES * LR
    out = tmp_path / "predictions.jsonl"
    run = commands.run(
        *("stochattn-predict", classification_data, "--path", third, "--output", out, "--cpu"),
        *("--samples", 3),
    )
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 40
    right = sum(row["prediction"] == row["label"] for row in rows)
    assert f"accuracy\t{100 * right / len(rows):.4g}" in run.stdout
