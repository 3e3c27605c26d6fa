"""The only file that knows versions of fairseq, torch and Python."""

from __future__ import annotations

import pickle
import zipfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.logging.meters import AverageMeter, StopwatchMeter, TimeMeter
from fairseq.optim import OPTIMIZER_REGISTRY, AMPOptimizer, FairseqOptimizer
from fairseq.tasks.sentence_ranking import SentenceRankingTask
from fairseq.trainer import Trainer
from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from torch import nn

from fairseq_stochattn.errors import UsageError


def _harmless_classes() -> list[Any]:
    """What fairseq writes into checkpoints beside tensors: configurations, counters, meters.

    None of these runs code when it is rebuilt; everything else in a checkpoint is refused.
    """
    config = [DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata, Any]
    counters = [AverageMeter, TimeMeter, StopwatchMeter]
    types = [dict, list, int, float, str, bool]  # named in the metadata of configurations
    # Stands for a tensor where the first rank tells the others what it has read.
    between_ranks = [_TensorPlaceholder]
    others = [*counters, *types, *between_ranks, *_numpy_numbers()]
    return [Namespace, *config, defaultdict, *others]


def _numpy_numbers() -> list[Any]:
    """A best score that scikit-learn computed (F1, Matthews, Spearman) is a number of numpy's.

    numpy 2 has moved the function that rebuilds one; checkpoints know it by either name.
    """
    scalar = np.float64(0).__reduce__()[0]
    names = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
    kinds = [type(np.dtype(kind)) for kind in ("float32", "float64", "int64", "bool")]
    return [np.dtype, *kinds, *((scalar, name) for name in names)]


def load_checkpoints_safely() -> None:
    """Let torch's weights-only loading read fairseq's checkpoints, and nothing that runs code.

    torch ≥ 2.6 (our lower bound) loads weights only by default and fairseq passes no options; its
    loader is wrapped so that a refused or damaged file is one line that names the cause.
    """
    torch.serialization.add_safe_globals(_harmless_classes())
    plain = checkpoint_utils.load_checkpoint_to_cpu
    if getattr(plain, "is_safe", False):
        return

    @wraps(plain)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> dict:
        with _one_line_errors(path):
            state = plain(path, *args, **kwargs)
        # The trainer reads it for criterions with parameters; old checkpoints do not have it.
        state.setdefault("criterion", None)
        return state

    load_checkpoint_to_cpu.is_safe = True
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


@contextmanager
def _one_line_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"checkpoint {path} does not exist") from None
    except pickle.UnpicklingError as error:
        raise UsageError(f"checkpoint {path} is refused: {_refusal(path, error)}") from None
    except KeyError as error:
        raise UsageError(f"{path} is no fairseq checkpoint: it has no {error}") from None
    except (RuntimeError, EOFError, zipfile.BadZipFile, ValueError, TypeError) as error:
        raise UsageError(f"checkpoint {path} cannot be read: {first_line(error)}") from None


def load_checkpoint(path: str) -> dict:
    """A checkpoint file as a dictionary, on the CPU, without executing code from it."""
    with _one_line_errors(path):
        return torch.load(path, map_location="cpu", weights_only=True)


def restore_numpy_alias() -> None:
    """fairseq's datasets (sample-break-mode eos, batch buckets) read ``np.compat.long``.

    numpy 2 has dropped that name for Python's int.
    """
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)


def keep_last_batch() -> None:
    """fairseq-fixed drops the last batch unless it fills --required-batch-size-multiple (8).

    Batches are sorted by length, so the longest sentences would never be trained on, and
    fairseq-generate would leave them out of the translation and of BLEU. 0.12.2 keeps them.
    """
    plain = data_utils.batch_by_size
    if getattr(plain, "keeps_last_batch", False):
        return

    @wraps(plain)
    def batch_by_size(indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        if len(indices) == 0 or kwargs.get("fixed_shapes") is not None:
            return plain(indices, *args, **kwargs) if len(indices) else []
        batches = list(plain(indices, *args, **kwargs))
        kept = sum(map(len, batches))  # batches are consecutive parts of the indices
        return batches if kept == len(indices) else [*batches, indices[kept:]]

    batch_by_size.keeps_last_batch = True
    data_utils.batch_by_size = batch_by_size


def show_optimizers_the_model() -> None:
    """fairseq builds optimizers from a bare list of parameters, perhaps fp32 copies without names.

    One that has ``attach`` is shown the model and how its parameters are held; before it is built
    its class may refuse what cannot work. All other optimizers are built as ever.
    """
    plain = Trainer._build_optimizer
    if getattr(plain, "shows_the_model", False):
        return

    @wraps(plain)
    def _build_optimizer(trainer: Trainer) -> None:
        chosen = OPTIMIZER_REGISTRY.get(getattr(trainer.cfg.optimizer, "_name", None))
        if not hasattr(chosen, "attach"):
            return plain(trainer)
        chosen.refuse_impossible(trainer.cfg)
        plain(trainer)
        wrapper, optimizer = None, trainer.optimizer
        while not isinstance(optimizer, chosen):
            wrapper, optimizer = optimizer, _wrapped(optimizer)
        held = {parameter: parameter for parameter in optimizer.params}
        if hasattr(wrapper, "fp32_params"):
            held = dict(zip(wrapper.fp16_params, wrapper.fp32_params, strict=True))
        optimizer.attach(
            trainer.get_model(),
            held,
            trainer.cfg.common.seed,
            trainer.get_num_updates,
            partial(_unscale, wrapper),
        )

    _build_optimizer.shows_the_model = True
    Trainer._build_optimizer = _build_optimizer


def show_criterions_the_model() -> None:
    """fairseq builds criterions before they can know the model, or how the run is configured.

    One that has ``attach`` is shown both when the Trainer is built, in training alone, while it can
    still add parameters of its own.
    """
    plain = Trainer.__init__
    if getattr(plain, "shows_the_model", False):
        return

    @wraps(plain)
    def init(
        trainer: Trainer, cfg: Any, task: Any, model: Any, criterion: Any, *more: Any, **named: Any
    ) -> None:
        if hasattr(criterion, "attach"):
            criterion.attach(model, cfg)
        plain(trainer, cfg, task, model, criterion, *more, **named)

    init.shows_the_model = True
    Trainer.__init__ = init


def took_step(optimizer: FairseqOptimizer, scale_before: float) -> bool:
    """Whether an optimizer stepped: with ``--amp`` gradients that overflow lower the scale instead.

    The other precisions tell fairseq's trainer before, which then asks for no step.
    """
    return loss_scale(optimizer) >= scale_before


def loss_scale(optimizer: FairseqOptimizer) -> float:
    """That of ``--amp``, else 1."""
    return optimizer.scaler.get_scale() if isinstance(optimizer, AMPOptimizer) else 1.0


def _wrapped(optimizer: FairseqOptimizer) -> FairseqOptimizer:
    """What fairseq's wrapper for fp16, AMP or block momentum is around."""
    names = ("fp32_optimizer", "wrapped_optimizer", "_optimizer")
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))


def _unscale(wrapper: FairseqOptimizer | None) -> float | torch.Tensor:
    """Undo the loss scale of an fp16 wrapper that asks for the norm of the gradients.

    It has read its scale already and will multiply the norm by it: this factor is returned.
    """
    factor = getattr(wrapper, "_multiply_factor", 1.0)
    if hasattr(wrapper, "_unscale_grads"):
        wrapper._unscale_grads()
    return factor


def mend_sentence_ranking() -> None:
    """sentence_ranking reads --max-positions, which has no default, and asks for its criterion.

    RoBERTa's 512 is the default, and the criterion may be one that wraps it.
    """
    plain = SentenceRankingTask.setup_task
    if getattr(plain, "is_mended", False):
        return

    def setup_task(args: Namespace, **kwargs: Any) -> SentenceRankingTask:
        if args.num_classes is None:
            raise UsageError("--task sentence_ranking needs the number of options: --num-classes N")
        args.max_positions = getattr(args, "max_positions", None) or 512
        task = plain(Namespace(**{**vars(args), "criterion": "sentence_ranking"}), **kwargs)
        task.args = args
        return task

    setup_task.is_mended = True
    SentenceRankingTask.setup_task = staticmethod(setup_task)


def use_own_attention_in_eval(layers: Iterable[nn.Module]) -> None:
    """fairseq 0.12.2 runs encoder layers in eval by a fused kernel that skips our attention."""
    for layer in layers:
        if hasattr(layer, "can_use_fastpath"):
            layer.can_use_fastpath = False


def _refusal(path: str, error: Exception) -> str:
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        foreign = []
    if foreign:
        return f"it holds more than weights and settings: {', '.join(sorted(foreign))}"
    return first_line(error)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
