"""compat.py: safe loading of checkpoints, and fixes of fairseq for current versions."""

from __future__ import annotations

import fractions
import io
import pickle
import random
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.logging.meters import AverageMeter, StopwatchMeter, TimeMeter
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

import runner
import sizes
from fairseq_stochattn import compat
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.errors import InputError

MIXED = {"a": [1, 2.5, "x", None, True], "b": {"c": "${a.0}"}}


@pytest.mark.parametrize(
    "content",
    [
        Namespace(lr=[0.1], arch="transformer", nested=Namespace(x=None)),
        OmegaConf.create(MIXED),
        [AverageMeter(round=3), TimeMeter(), StopwatchMeter()],
        _TensorPlaceholder(3),
        np.float64(0.25),
        np.float32(0.5),
    ],
    ids=["argparse", "omegaconf", "meters", "between ranks", "score", "single score"],
)
def test_objects_that_fairseq_saves_are_loaded(content: object, tmp_path: Path) -> None:
    torch.save({"extra_state": content}, tmp_path / "checkpoint.pt")
    loaded = compat.load_checkpoint(str(tmp_path / "checkpoint.pt"))["extra_state"]
    assert type(loaded) is type(content)
    if not isinstance(content, list):
        assert loaded == content


def test_objects_of_other_classes_are_refused(tmp_path: Path) -> None:
    torch.save({"extra_state": fractions.Fraction(1, 3)}, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match=r"is refused: it holds more .*fractions\.Fraction"):
        compat.load_checkpoint(str(tmp_path / "checkpoint.pt"))


def test_loader_is_wrapped_once() -> None:
    from fairseq import checkpoint_utils

    wrapped = checkpoint_utils.load_checkpoint_to_cpu
    compat.load_checkpoints_safely()
    assert checkpoint_utils.load_checkpoint_to_cpu is wrapped


def test_trainer_is_patched_once() -> None:
    wrapped = Trainer._build_optimizer
    compat.attach_model_to_optimizers()
    assert Trainer._build_optimizer is wrapped


def test_numpy_alias_that_fairseq_needs_exists() -> None:
    assert np.zeros(2, dtype=np.compat.long).dtype == np.dtype(int)


@pytest.mark.parametrize("count", [1, 7, 8, 37, 64])
def test_batches_contain_every_sentence(count: int) -> None:
    """Without the fix, fairseq-fixed drops up to seven of the longest sentences."""
    lengths = np.sort(np.random.RandomState(0).randint(1, 20, count))
    batches = data_utils.batch_by_size(
        np.arange(count),
        num_tokens_fn=lambda index: lengths[index],
        max_tokens=80,
        required_batch_size_multiple=8,
    )
    assert np.concatenate(batches).tolist() == list(range(count))
    for batch in batches:
        assert len(batch) * lengths[batch].max() <= 80
        assert len(batch) % 8 == 0 or len(batch) < 8


def test_fused_encoder_kernel_of_fairseq_0_12_2_is_switched_off() -> None:
    layers = [SimpleNamespace(can_use_fastpath=True), SimpleNamespace()]
    compat.use_own_attention_in_eval(layers)
    assert layers[0].can_use_fastpath is False
    assert not hasattr(layers[1], "can_use_fastpath")


def blobs(count: int) -> list[bytes]:
    """Random bytes, and a valid checkpoint that was cut or changed at random places."""
    rng, buffer = random.Random(0), io.BytesIO()
    torch.save({"model": {"weight": torch.zeros(3)}, "cfg": {"model": {"arch": "x"}}}, buffer)
    valid, found = buffer.getvalue(), []
    for number in range(count):
        if number % 3 == 0:
            found.append(rng.randbytes(rng.randrange(200)))
        elif number % 3 == 1:
            found.append(valid[: rng.randrange(len(valid))])
        else:
            changed = bytearray(valid)
            for _ in range(rng.randrange(1, 20)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            found.append(bytes(changed))
    pickles = (
        pickle.PROTO + bytes([2]) + rng.randbytes(rng.randrange(1, 40)) for _ in range(count)
    )
    return [*found, *pickles]


def test_files_of_any_content_are_loaded_or_refused_in_one_line(tmp_path: Path) -> None:
    path, messages = tmp_path / "checkpoint.pt", []
    for blob in blobs(300):
        path.write_bytes(blob)
        for load in (compat.load_checkpoint, checkpoint_utils.load_checkpoint_to_cpu):
            try:
                load(str(path))
            except (InputError, UsageError) as error:
                messages.append(str(error))
    assert len(messages) > 800
    assert not any("\n" in message for message in messages)


def test_a_directory_and_a_file_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        compat.load_checkpoint(str(tmp_path))
    torch.save({"cfg": {}, "args": None}, tmp_path / "empty.pt")
    with pytest.raises(UsageError, match="is not a fairseq checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "empty.pt"))


def test_an_overflow_in_fp16_is_survived_on_the_cpu(lm_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "electra_deterministic", *sizes.ELECTRA, *sizes.REPLACED_TOKENS)
    half = ("--fp16", "--fp16-no-flatten-grads", "--on-cpu-convert-precision")
    scale = ("--fp16-init-scale", 2**24, "--max-update", 2, "--no-save")
    output = runner.train(lm_data, tmp_path, *flags, *half, *scale)
    assert "gradient overflow detected" in output.text
    assert len(output.losses()) >= 1
