"""stochattn-evaluate through real checkpoints of every task: its figures, its files, its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import commands
import sizes
from fairseq_stochattn.analysis import evaluate_command


def evaluate(data: Path, *checkpoints: Path, more: tuple = ()) -> dict:
    out = checkpoints[0].parent / "evaluation.json"
    given = (data, "--path", *checkpoints, "--cpu", "--force", "--json", out, *more)
    assert evaluate_command.main([str(x) for x in given]) == 0
    return json.loads(out.read_text())


def trained(data: Path, folder: Path, arch: str, *flags: object, epochs: int = 1) -> Path:
    commands.train(data, folder, "--arch", arch, *flags, "--max-epoch", epochs)
    return folder / "checkpoint_last.pt"


TASKS = {
    "translation": ("translation_data", "transformer", sizes.TRANSFORMER),
    "lstm": ("translation_data", "lstm", sizes.LSTM),
    "language_modeling": ("lm_data", "transformer_lm", sizes.TRANSFORMER_LM),
    "masked_lm": ("lm_data", "roberta", (*sizes.ROBERTA, *sizes.MASKED_LM)),
    "sentence_prediction": (
        "classification_data",
        "roberta",
        (*sizes.ROBERTA, *sizes.CLASSIFICATION),
    ),
    "token_tagging": ("tagging_data", "roberta", (*sizes.ROBERTA, *sizes.TAGGING)),
    "sentence_ranking": ("choice_data", "roberta", (*sizes.ROBERTA, *sizes.CHOICE)),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task(name, request, tmp_path, capsys):
    fixture, backbone, flags = TASKS[name]
    data = request.getfixturevalue(fixture)
    plain = trained(data, tmp_path / "plain", backbone, *flags)
    babn = trained(data, tmp_path / "babn", f"{backbone}_babn", *flags)
    found = evaluate(data, plain, babn, more=("--samples", 5))
    print(json.dumps(found, indent=1)[:6000])
    print(capsys.readouterr().out)
