"""Damaged and odd checkpoints are loaded or refused with one line, and never execute code."""

from __future__ import annotations

import io
import pickle
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging.meters import AverageMeter
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from bad_input import Malicious
from fairseq_stochattn import compat
from fairseq_stochattn.analysis import page, report
from fairseq_stochattn.analysis.run_folder import read_training
from mutations import cases, damaged, edited, one_line_or_success

CONFIG = {
    "model": {"_name": "transformer_deterministic", "arch": "transformer", "dropout": 0.1},
    "task": {"_name": "translation", "data": "data-bin", "source_lang": "de"},
    "criterion": {"_name": "cross_entropy", "sentence_avg": False},
    "optimization": {"lr": [0.1], "max_update": 7},
    "common": {"seed": 1, "log_file": None},
}
STATE = {
    "args": None,
    "cfg": CONFIG,
    "model": {"encoder.weight": [0.5, 1.0], "encoder.version": [3.0]},
    "optimizer_history": [
        {
            **{"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam"},
            **{"lr_scheduler_state": {"best": 2.5}, "num_updates": 7},
        }
    ],
    "task_state": {},
    "extra_state": {
        **{"metrics": [], "previous_training_time": 3.5, "best": 2.5, "val_loss": 2.5},
        "train_iterator": {"epoch": 2, "iterations_in_epoch": 0, "version": 2, "shuffle": True},
    },
    "last_optimizer_state": None,
}


def configuration(path: str) -> str:
    return report.configuration(read_training(Path(path)))


LOADERS: dict[str, Callable[[str], object]] = {
    "torch": compat.load_checkpoint,
    "fairseq": checkpoint_utils.load_checkpoint_to_cpu,
    "report": lambda path: page.document("", "", [("", configuration(path))]).encode(),
}
# Share of the cases: fairseq takes 0.1 seconds to complete the configuration of a checkpoint.
SHARES = {"torch": 1.0, "fairseq": 0.02, "report": 0.2}


def finished(state: Any, style: str = "dict") -> Any:
    """The state as fairseq saves it: lists of floats become tensors; ``style`` is that of cfg."""
    if not isinstance(state, dict):
        return state
    model = state.get("model")
    if isinstance(model, dict):
        floats = {k: v for k, v in model.items() if isinstance(v, list) and v and _floats(v)}
        state = {**state, "model": {**model, **{k: torch.tensor(v) for k, v in floats.items()}}}
    config = state.get("cfg")
    if style == "omegaconf" and isinstance(config, dict):
        try:
            state = {**state, "cfg": OmegaConf.create(config)}
        except Exception:  # omegaconf refuses most odd values, so no checkpoint contains them
            return state
    elif style == "namespace" and isinstance(config, dict):
        groups = [group for group in config.values() if isinstance(group, dict)]
        flags = {str(name): value for group in groups for name, value in group.items()}
        state = {**state, "args": Namespace(**flags), "cfg": None}
    return state


def _floats(values: list[Any]) -> bool:
    return all(isinstance(x, float) for x in values)


def saved(state: Any, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


VALID = finished(STATE)
ZIP = saved(VALID)


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def repacked(changed: dict[str, bytes]) -> bytes:
    """The checkpoint with some members replaced, with correct checksums."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {**MEMBERS, **changed}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


MEMBERS = members(ZIP)
PICKLE = next(name for name in MEMBERS if name.endswith("data.pkl"))
OTHERS = [name for name in MEMBERS if name != PICKLE]


def odd_states() -> st.SearchStrategy[bytes]:
    """Checkpoints with edited parts, in all ways in which fairseq has stored the configuration."""
    style = st.sampled_from(["dict", "omegaconf", "namespace"])
    return st.builds(
        lambda state, style, legacy: saved(finished(state, style), legacy),
        edited(STATE),
        style,
        st.booleans(),
    )


def files() -> st.SearchStrategy[bytes]:
    pickled = damaged(MEMBERS[PICKLE]).map(lambda content: repacked({PICKLE: content}))
    others = st.builds(
        lambda name, content: repacked({name: content}),
        st.sampled_from(OTHERS),
        damaged(b"little", b"1\n", b"\x00" * 12),
    )
    legacy, plain = saved(VALID, legacy=True), pickle.dumps({"model": {}}, protocol=2)
    bytewise = damaged(ZIP, legacy, plain)
    return st.one_of(odd_states(), odd_states(), pickled, pickled, others, bytewise)


@pytest.mark.parametrize("loader", LOADERS)
def test_the_valid_checkpoint_is_loaded(loader: str, folder: Path) -> None:
    for style in ("dict", "omegaconf", "namespace"):
        for legacy in (False, True):
            (folder / "valid.pt").write_bytes(saved(finished(STATE, style), legacy))
            assert LOADERS[loader](str(folder / "valid.pt"))


@pytest.mark.parametrize("loader", LOADERS)
def test_checkpoint(loader: str, folder: Path) -> None:
    path = folder / "checkpoint.pt"

    @cases(SHARES[loader])
    @given(content=files())
    def check(content: bytes) -> None:
        path.write_bytes(content)
        with one_line_or_success():
            LOADERS[loader](str(path))

    check()


@cases(0.02)
@given(state=edited({**STATE, "extra_state": {"meter": "@"}}), place=st.sampled_from(sorted(STATE)))
def test_code_in_a_checkpoint_is_never_executed(folder: Path, state: Any, place: str) -> None:
    target, path = folder / "executed", folder / "code.pt"
    odd = state if isinstance(state, dict) else {}
    path.write_bytes(saved({**odd, place: [AverageMeter(), Malicious(target)]}))
    for load in LOADERS.values():
        with one_line_or_success():
            load(str(path))
    assert not target.exists()
