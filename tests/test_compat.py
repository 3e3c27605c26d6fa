"""compat.py: what checkpoints may hold, and what current versions broke in fairseq."""

from __future__ import annotations

import fractions
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import data_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.logging.meters import AverageMeter, StopwatchMeter, TimeMeter
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from fairseq_stochattn import compat
from fairseq_stochattn.errors import UsageError

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
def test_what_fairseq_writes_is_loaded(content: object, tmp_path: Path) -> None:
    torch.save({"extra_state": content}, tmp_path / "checkpoint.pt")
    loaded = compat.load_checkpoint(str(tmp_path / "checkpoint.pt"))["extra_state"]
    assert type(loaded) is type(content)
    if not isinstance(content, list):
        assert loaded == content


def test_everything_else_is_refused(tmp_path: Path) -> None:
    torch.save({"extra_state": fractions.Fraction(1, 3)}, tmp_path / "checkpoint.pt")
    with pytest.raises(UsageError, match=r"is refused: it holds more .*fractions\.Fraction"):
        compat.load_checkpoint(str(tmp_path / "checkpoint.pt"))


def test_loader_is_wrapped_once() -> None:
    from fairseq import checkpoint_utils

    wrapped = checkpoint_utils.load_checkpoint_to_cpu
    compat.load_checkpoints_safely()
    assert checkpoint_utils.load_checkpoint_to_cpu is wrapped


def test_trainer_is_wrapped_once() -> None:
    wrapped = Trainer._build_optimizer
    compat.show_optimizers_the_model()
    assert Trainer._build_optimizer is wrapped


def test_numpy_alias_that_fairseq_reads() -> None:
    assert np.zeros(2, dtype=np.compat.long).dtype == np.dtype(int)


@pytest.mark.parametrize("count", [1, 7, 8, 37, 64])
def test_no_sentence_is_left_out_of_the_batches(count: int) -> None:
    """fairseq-fixed alone drops up to seven sentences here, the longest ones."""
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


def test_fused_encoder_path_of_0_12_2_is_switched_off() -> None:
    layers = [SimpleNamespace(can_use_fastpath=True), SimpleNamespace()]
    compat.use_own_attention_in_eval(layers)
    assert layers[0].can_use_fastpath is False
    assert not hasattr(layers[1], "can_use_fastpath")
