"""Checkpoints of earlier versions: what they mean does not change with the defaults."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

import runner
import sizes
from fairseq_stochattn.methods.babn import BABNAttention
from fairseq_stochattn.old_checkpoints import keep_old_meaning

OLD = {"babn_beta": 0.5, "bam_beta": 2.0}
EXPECTED = {"babn_prior_strength": 1.0, "bam_prior_strength": 1.0}
EXPECTED |= {"babn_noise": "paper", "bam_noise": "paper"}


@pytest.mark.parametrize("kind", [dict, Namespace, lambda **flags: OmegaConf.create(flags)])
@pytest.mark.parametrize("place", ["cfg", "args"])
def test_settings_that_an_old_checkpoint_lacks_are_those_it_was_trained_with(kind, place) -> None:
    model = kind(**OLD)
    if isinstance(model, type(OmegaConf.create({}))):
        OmegaConf.set_struct(model, True)  # as fairseq does
    keep_old_meaning({"cfg": {"model": model}} if place == "cfg" else {"args": model})
    found = dict(vars(model)) if isinstance(model, Namespace) else dict(model)
    assert found == OLD | EXPECTED


def test_new_and_other_checkpoints_stay_as_they_are() -> None:
    for model in ({"babn_beta": None, "babn_prior_strength": 10.0}, {"encoder_layers": 3}, {}):
        state = {"cfg": {"model": dict(model)}, "args": None}
        keep_old_meaning(state)
        assert state["cfg"]["model"] == model
    keep_old_meaning({"cfg": None})


def test_an_old_checkpoint_is_loaded_with_its_prior_and_noise(
    translation_data: Path, tmp_path: Path
) -> None:
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo")
    old = ("--babn-prior-strength", 1, "--babn-beta", 1, "--babn-noise", "paper")
    runner.train(translation_data, tmp_path, *flags, *old, "--max-update", 2)
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=True)
    for name in ("babn_prior_strength", "babn_noise", "babn_start"):
        del state["cfg"]["model"][name]  # version 0.1 did not have them
    torch.save(state, path)
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(translation_data)}
    )
    layers = [m for m in model.modules() if isinstance(m, BABNAttention)]
    assert {(m.settings.prior_strength, m.settings.noise) for m in layers} == {(1.0, "paper")}
