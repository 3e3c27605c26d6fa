"""Pre-training, continued pre-training, fine-tuning and prediction, with a new method each time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

import runner
import sizes

MLM = ("--task", "masked_lm", "--tokens-per-sample", 16, "--sample-break-mode", "eos")
NO_DROPOUT = ("--dropout", 0, "--attention-dropout", 0, "--max-positions", 32)
LR, UPDATES = 1e-3, 4


def encoder_parameters(checkpoint: Path) -> dict[str, Tensor]:
    """Return the parameters of the encoder, without those of methods and output heads."""
    model = torch.load(checkpoint, weights_only=True)["model"]
    others = ("attention_methods.", ".shared.", "lm_head.", "classification_heads.")
    return {name: x for name, x in model.items() if not any(part in name for part in others)}


def train(data: Path, save: Path, arch: str, updates: int, *flags: object) -> Path:
    """Run fairseq-train as a process and return the checkpoint."""
    size = ("--arch", arch, *sizes.ROBERTA, *NO_DROPOUT, "--lr", LR, "--max-update", updates)
    run = runner.run(
        "fairseq-train",
        *(data, "--user-dir", runner.USER_DIR, *runner.TRAIN, "--save-dir", save),
        *(*size, *flags),
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return save / "checkpoint_last.pt"


def largest_change(before: Path, after: Path) -> float:
    """Return the largest change of a number in the encoder between two checkpoints."""
    old, new = encoder_parameters(before), encoder_parameters(after)
    assert old.keys() == new.keys()
    return max((new[name] - old[name]).abs().max().item() for name in old)


def test_every_stage_can_use_another_method(
    lm_data: Path, classification_data: Path, tmp_path: Path
) -> None:
    """Masked LM with babn → masked LM with ct → fine-tuning with bam → predictions.

    Each stage starts from the previous one: Adam changes a weight by at most its learning rate per
    update.
    """
    first = train(lm_data, tmp_path / "mlm", "roberta_babn", 20, *MLM, "--criterion", "elbo")
    second = train(
        *(lm_data, tmp_path / "more", "roberta_alignment", UPDATES, *MLM),
        *("--criterion", "alignment", "--alignment", "ct", "--finetune-from-model", first),
    )
    assert 0.1 * LR < largest_change(first, second) < 1.1 * UPDATES * LR
    third = train(
        *(classification_data, tmp_path / "classes", "roberta_bam", UPDATES),
        *("--task", "sentence_prediction", "--num-classes", 5, "--criterion", "elbo"),
        *("--finetune-from-model", second),
    )
    assert 0.1 * LR < largest_change(second, third) < 1.1 * UPDATES * LR
    out = tmp_path / "predictions.jsonl"
    run = runner.run(
        *("stochattn-predict", classification_data, "--path", third, "--output", out, "--cpu"),
        *("--samples", 3),
    )
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 40
    correct = sum(row["prediction"] == row["label"] for row in rows)
    assert f"accuracy\t{100 * correct / len(rows):.4g}" in run.stdout
