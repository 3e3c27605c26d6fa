"""Ways to start: every form of --user-dir, hydra, tensorboard, the installed commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import runner
import sizes
from launch import ELECTRA, HYDRA, LANGUAGE_MODEL, LSTM, ROBERTA, TRANSFORMER

SHORT = (*runner.TRAIN, *sizes.TRANSFORMER, "--dropout", 0, "--max-update", 2)


def train_in(cwd: Path, user_dir: object, data: Path, save: Path, **env: str) -> None:
    """Run fairseq-train as a process in the folder ``cwd``; it must succeed."""
    executable = Path(sys.executable).parent / "fairseq-train"
    arch = ("--arch", "transformer_deterministic", "--user-dir", user_dir, "--save-dir", save)
    result = subprocess.run(
        [str(executable), *map(str, (data, *SHORT, *arch))],
        cwd=cwd,
        text=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert (save / "checkpoint_last.pt").exists()


def test_relative_user_dir(translation_data: Path, tmp_path: Path) -> None:
    train_in(runner.ROOT, "fairseq_stochattn", translation_data, tmp_path / "run")


def test_absolute_user_dir_from_another_folder(translation_data: Path, tmp_path: Path) -> None:
    train_in(tmp_path, runner.USER_DIR, translation_data, tmp_path / "run")


def test_user_dir_of_an_installed_package(translation_data: Path, tmp_path: Path) -> None:
    """A wheel has all files, and stochattn-methods prints the path for --user-dir."""
    source, site = tmp_path / "source", tmp_path / "site"
    ignore = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "demo-run")
    shutil.copytree(runner.ROOT, source, ignore=ignore)
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", site, source],
        check=True,
        capture_output=True,
    )
    installed = site / "fairseq_stochattn"
    data_prep = runner.ROOT / "data-prep"
    expected = {p.relative_to(runner.USER_DIR) for p in runner.USER_DIR.rglob("*.py")}
    expected |= {"data_prep" / p.relative_to(data_prep) for p in data_prep.rglob("*.py")}
    assert {p.relative_to(installed) for p in installed.rglob("*.py")} == expected
    listing = subprocess.run(
        [sys.executable, site / "bin" / "stochattn-methods"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert listing.returncode == 0, listing.stderr[-2000:]
    user_dir = listing.stdout.splitlines()[0].split(" ", 1)[1]
    assert Path(user_dir) == installed
    train_in(tmp_path, user_dir, translation_data, tmp_path / "run", PYTHONPATH=str(site))


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("translation", TRANSFORMER),
        ("translation", LSTM),
        ("language_modeling", LANGUAGE_MODEL),
        ("masked_lm", ROBERTA),
        ("electra", ELECTRA),
    ],
    ids=["transformer", "lstm", "transformer_lm", "roberta", "electra"],
)
def test_hydra_train(
    task: str, model: str, translation_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    data = translation_data if task == "translation" else lm_data
    config = HYDRA.format(
        user_dir=runner.USER_DIR, task=task, data=data, save=tmp_path / "run", model=model
    )
    if task != "translation":
        config = config.replace("task:\n", "task:\n  tokens_per_sample: 16\n")
    (tmp_path / "tiny.yaml").write_text(config)
    result = runner.run(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "tiny", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-3000:]
    state = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    stored = state["cfg"]["model"]
    assert stored["_name"] in model
    if task == "translation":
        checkpoint = tmp_path / "run" / "checkpoint_last.pt"
        assert "Generate test" in runner.generate(data, checkpoint).text
    if "iwslt" in model:
        # The preset has six decoder layers; the configuration above has one encoder layer.
        layers = {name.split(".")[2] for name in state["model"] if "decoder.layers" in name}
        assert layers == set("012345")
        assert state["model"]["encoder.layers.0.fc1.weight"].shape == (32, 32)


def test_user_dir_registers_archs_of_a_package_that_is_already_imported() -> None:
    """Importing the package changes nothing in fairseq; naming it as --user-dir then does."""
    script = """
import sys
import fairseq_stochattn
from argparse import Namespace
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
assert "transformer_babn" not in ARCH_MODEL_REGISTRY
utils.import_user_module(Namespace(user_dir=sys.argv[1]))
assert "transformer_babn" in ARCH_MODEL_REGISTRY
"""
    command = [sys.executable, "-c", script, str(runner.USER_DIR)]
    done = subprocess.run(command, text=True, capture_output=True, cwd=runner.ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_tensorboard_has_all_terms(translation_data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = ("--arch", "transformer_toy", "--criterion", "attention_losses")
    board = ("--tensorboard-logdir", tmp_path / "board")
    runner.train(translation_data, tmp_path / "run", *SHORT, *flags, *board)
    events = EventAccumulator(str(tmp_path / "board" / "train_inner"))
    events.Reload()
    assert {"loss", "objective", "toy", "toy_weight", "toy_scale"} <= set(events.Tags()["scalars"])
    assert len(events.Scalars("toy")) == 2


def test_installed_commands(tmp_path: Path) -> None:
    listing = runner.run("stochattn-methods")
    assert listing.returncode == 0, listing.stderr
    for backbone in ("transformer", "transformer_lm", "lstm", "roberta", "electra"):
        assert f"--arch {backbone}_deterministic\n" in listing.stdout
    for flag in ("--attention:", "--attention-sites:", "--attention-layers:"):
        assert f"\n  {flag} " in listing.stdout
    every = runner.run("stochattn-methods", "--archs").stdout
    assert "--arch transformer_deterministic_iwslt_de_en" in every
    assert "--arch transformer_lm_deterministic_gpt2_small" in every
    missing = runner.run("stochattn-export", tmp_path / "no.pt", tmp_path / "out.pt")
    assert missing.returncode == 1
    assert len(missing.stderr.strip().splitlines()) == 1
    assert "does not exist" in missing.stderr


def test_loaded_checkpoint_in_eval_runs_our_attention(
    translation_data: Path, tmp_path: Path
) -> None:
    """In a new process, where fairseq 0.12.2 would use a fused kernel without our attention."""
    flags = ("--arch", "transformer_deterministic")
    runner.train(translation_data, tmp_path / "run", *SHORT, *flags)
    script = """
import sys, torch
from fairseq import checkpoint_utils, utils
from argparse import Namespace
utils.import_user_module(Namespace(user_dir=sys.argv[1]))
models, _, _ = checkpoint_utils.load_model_ensemble_and_task([sys.argv[2]])
from fairseq_stochattn.methods.deterministic import DeterministicAttention
calls = []
plain = DeterministicAttention.forward
DeterministicAttention.forward = lambda self, *args: calls.append(1) or plain(self, *args)
model = models[0].eval()
with torch.no_grad():
    model.encoder(torch.full((2, 5), 7), torch.tensor([5, 5]))
print("calls", len(calls), "layers", len(model.encoder.layers))
"""
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    result = subprocess.run(
        [sys.executable, "-c", script, str(runner.USER_DIR), str(checkpoint)],
        text=True,
        capture_output=True,
    )
    assert result.stdout.strip().endswith("calls 2 layers 2"), result.stderr[-2000:]
