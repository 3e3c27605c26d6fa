"""Fixes for the installed versions of fairseq, torch and numpy; no other file depends on versions.

``apply`` patches fairseq in place. Each patch marks the function that it installs, so that applying
it again changes nothing.
"""

from __future__ import annotations

import pickle
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

from .clean_exit import leave_process_groups_at_exit, stop_loading_at_exit
from .core import errors
from .core.errors import InputError, SettingError
from .core.settings import Settings, flag_name
from .old_checkpoints import keep_old_meaning


class UsageError(SystemExit):
    """Bad input to one of fairseq's commands: one line on stderr, exit status 1.

    It is a ``SystemExit`` because fairseq wraps model loading in ``except Exception``, which would
    replace the message by a traceback. Our Python API raises ``InputError`` instead.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"fairseq_stochattn: {' '.join(message.split())}")


def usage_error(error: InputError) -> UsageError:
    """Convert an error of the Python API to one of the command line, which names the flag."""
    if not isinstance(error, SettingError):
        return UsageError(str(error))
    flag = error.setting
    if issubclass(error.settings_class, Settings):
        flag = flag_name(error.settings_class, error.settings_class.__dataclass_fields__[flag])
    return UsageError(f"--{flag.replace('_', '-')} {error.problem}")


@contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """Within the block, an ``InputError`` becomes a ``UsageError``. Used where fairseq calls us."""
    try:
        yield
    except InputError as error:
        raise usage_error(error) from None


def require_positive(config: Any, *names: str) -> None:
    """Exit unless each named flag of ``config`` is greater than 0."""
    with exit_on_bad_input():
        errors.require_positive(config, *names)


def require_not_negative(config: Any, *names: str) -> None:
    """Exit unless each named flag of ``config`` is at least 0."""
    with exit_on_bad_input():
        errors.require_not_negative(config, *names)


def _allowed_classes() -> list[Any]:
    """The classes that fairseq writes into checkpoints: configurations, counters and meters.

    None of them executes code when it is unpickled. Any other class in a checkpoint is refused.
    """
    config = [DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata, Any]
    counters = [AverageMeter, TimeMeter, StopwatchMeter]
    types = [dict, list, int, float, str, bool]  # named in the metadata of configurations
    # Replaces a tensor when the first rank broadcasts a checkpoint to the other ranks.
    between_ranks = [_TensorPlaceholder]
    others = [*counters, *types, *between_ranks, *_numpy_scalars()]
    return [Namespace, *config, defaultdict, *others]


def _numpy_scalars() -> list[Any]:
    """The classes needed to unpickle a numpy scalar.

    A checkpoint stores one as its best score if scikit-learn computed it (F1, Matthews, Spearman).
    numpy 2 has moved the function that rebuilds scalars; checkpoints contain either name.
    """
    scalar = np.float64(0).__reduce__()[0]
    names = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
    kinds = [type(np.dtype(kind)) for kind in ("float32", "float64", "int64", "bool")]
    return [np.dtype, *kinds, *((scalar, name) for name in names)]


def load_checkpoints_safely() -> None:
    """Make torch's weights-only loading accept fairseq's checkpoints, but nothing that runs code.

    fairseq calls ``torch.load`` without options, and torch ≥ 2.6 (our lower bound) then loads
    weights only. fairseq's loader is wrapped so that a refused or damaged file gives a one-line
    error that names the cause.
    """
    torch.serialization.add_safe_globals(_allowed_classes())
    plain = checkpoint_utils.load_checkpoint_to_cpu
    if getattr(plain, "is_safe", False):
        return

    @wraps(plain)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> dict:
        with exit_on_bad_input(), _one_line_errors(path):
            state = plain(path, *args, **kwargs)
            require_weights(path, state)
        # The trainer reads this key for criterions with parameters; old checkpoints lack it.
        state.setdefault("criterion", None)
        keep_old_meaning(state)
        return state

    load_checkpoint_to_cpu.is_safe = True
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


@contextmanager
def _one_line_errors(path: str) -> Iterator[None]:
    """Within the block, an error while reading checkpoint ``path`` becomes an ``InputError``."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"checkpoint {path} does not exist") from None
    except pickle.UnpicklingError as error:
        raise InputError(f"checkpoint {path} is refused: {_refusal(path, error)}") from None
    except KeyError as error:
        raise InputError(f"{path} is not a fairseq checkpoint: it has no {error}") from None
    except InputError:
        raise
    except OSError as error:
        cause = error.strerror or first_line(error)
        raise InputError(f"checkpoint {path} cannot be read: {cause}") from None
    except Exception as error:  # damaged files raise whatever the unpickler stumbles over
        raise InputError(f"checkpoint {path} cannot be read: {first_line(error)}") from None


def require_weights(path: object, state: Any) -> None:
    """Raise ``InputError`` unless ``state`` is a checkpoint with the weights of a model."""
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict):
        raise InputError(f"{path} is not a fairseq checkpoint: it has no 'model'")
    if not all(isinstance(weight, torch.Tensor) for weight in model.values()):
        raise InputError(f"{path} is not a fairseq checkpoint: its 'model' has more than tensors")


def load_checkpoint(path: str) -> dict:
    """Load a checkpoint as a dictionary, on the CPU, without executing code from it."""
    with _one_line_errors(path):
        return torch.load(path, map_location="cpu", weights_only=True)


def survive_overflow_on_cpu() -> None:
    """Make fairseq's handling of an fp16 overflow work on the CPU.

    It creates a zero with ``torch.tensor(0.0).cuda()``, which fails without CUDA.
    """
    plain = Trainer.train_step
    if getattr(plain, "survives_overflow", False):
        return

    @wraps(plain)
    def train_step(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        if trainer.cuda or torch.cuda.is_available():
            return plain(trainer, *args, **kwargs)
        to_cuda = torch.Tensor.cuda
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor
        try:
            return plain(trainer, *args, **kwargs)
        finally:
            torch.Tensor.cuda = to_cuda

    train_step.survives_overflow = True
    Trainer.train_step = train_step


def restore_numpy_alias() -> None:
    """Define ``np.compat.long`` as Python's ``int``, as it was before numpy 2 removed it.

    fairseq's datasets read it (``--sample-break-mode eos``, batch buckets).
    """
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)


def keep_last_batch() -> None:
    """Make ``batch_by_size`` keep the last batch, as fairseq 0.12.2 does.

    The package fairseq-fixed drops it unless its size is a multiple of
    ``--required-batch-size-multiple`` (by default 8). Sentences are sorted by length, so the
    longest would never be trained on, and fairseq-generate would not translate them.
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
        kept = sum(map(len, batches))  # the batches are consecutive slices of the indices
        return batches if kept == len(indices) else [*batches, indices[kept:]]

    batch_by_size.keeps_last_batch = True
    data_utils.batch_by_size = batch_by_size


def attach_model_to_optimizers() -> None:
    """Make the trainer pass the model to optimizers that have an ``attach`` method.

    fairseq gives an optimizer only a list of parameters; in fp16 training these are unnamed fp32
    copies. ``attach`` also receives the map from the model's parameters to the optimized ones.
    Before such an optimizer is built, its class method ``refuse_impossible`` checks the
    configuration. Other optimizers are built as before.
    """
    plain = Trainer._build_optimizer
    if getattr(plain, "attaches_model", False):
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
        optimized = {parameter: parameter for parameter in optimizer.params}
        if hasattr(wrapper, "fp32_params"):
            optimized = dict(zip(wrapper.fp16_params, wrapper.fp32_params, strict=True))
        optimizer.attach(
            trainer.get_model(),
            optimized,
            trainer.cfg.common.seed,
            trainer.get_num_updates,
            partial(_unscale, wrapper),
        )

    _build_optimizer.attaches_model = True
    Trainer._build_optimizer = _build_optimizer


def attach_model_to_criterions() -> None:
    """Make the trainer pass the model and configuration to criterions with an ``attach`` method.

    fairseq builds criterions without either. The call comes before the trainer collects the
    parameters to optimize, so the criterion can still add its own. A run that only validates has no
    trainer and never calls ``attach``.
    """
    plain = Trainer.__init__
    if getattr(plain, "attaches_model", False):
        return

    @wraps(plain)
    def init(
        trainer: Trainer, cfg: Any, task: Any, model: Any, criterion: Any, *more: Any, **named: Any
    ) -> None:
        if hasattr(criterion, "attach"):
            criterion.attach(model, cfg)
        plain(trainer, cfg, task, model, criterion, *more, **named)

    init.attaches_model = True
    Trainer.__init__ = init


def took_step(optimizer: FairseqOptimizer, scale_before: float) -> bool:
    """Whether the last call of ``optimizer.step`` changed the parameters.

    With ``--amp``, gradients that overflow only lower the loss scale. In the other precisions
    fairseq's trainer detects the overflow and does not call ``step``.
    """
    return loss_scale(optimizer) >= scale_before


def loss_scale(optimizer: FairseqOptimizer) -> float:
    """The current loss scale of ``--amp``; 1 without it."""
    return optimizer.scaler.get_scale() if isinstance(optimizer, AMPOptimizer) else 1.0


def _wrapped(optimizer: FairseqOptimizer) -> FairseqOptimizer:
    """The optimizer inside fairseq's wrapper for fp16, AMP or block momentum."""
    names = ("fp32_optimizer", "wrapped_optimizer", "_optimizer")
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))


def _unscale(wrapper: FairseqOptimizer | None) -> float | torch.Tensor:
    """Remove the loss scale from the gradients of an fp16 wrapper; return the factor that did it.

    This is called while the wrapper computes the gradient norm. The wrapper has already read the
    factor and will multiply the norm by it, so the caller must compensate for it.
    """
    factor = getattr(wrapper, "_multiply_factor", 1.0)
    if hasattr(wrapper, "_unscale_grads"):
        wrapper._unscale_grads()
    return factor


def fix_sentence_ranking() -> None:
    """Make the task sentence_ranking run without ``--max-positions`` and with wrapping criterions.

    fairseq's task reads ``--max-positions`` but gives it no default; here the default is RoBERTa's
    512. fairseq's task also requires ``--criterion sentence_ranking``; here criterions that wrap it
    are accepted too.
    """
    plain = SentenceRankingTask.setup_task
    if getattr(plain, "is_fixed", False):
        return

    def setup_task(args: Namespace, **kwargs: Any) -> SentenceRankingTask:
        if args.num_classes is None:
            raise UsageError(
                "--task sentence_ranking needs the number of answer options: --num-classes N"
            )
        args.max_positions = getattr(args, "max_positions", None) or 512
        task = plain(Namespace(**{**vars(args), "criterion": "sentence_ranking"}), **kwargs)
        task.args = args
        return task

    setup_task.is_fixed = True
    SentenceRankingTask.setup_task = staticmethod(setup_task)


def use_own_attention_in_eval(layers: Iterable[nn.Module]) -> None:
    """Switch off the fused kernel of encoder layers in eval, which would skip our attention.

    Only fairseq 0.12.2 has this kernel.
    """
    for layer in layers:
        if hasattr(layer, "can_use_fastpath"):
            layer.can_use_fastpath = False


def _refusal(path: str, error: Exception) -> str:
    """Why torch refused the file: the classes that are not allowed, or the error's first line."""
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        foreign = []
    if foreign:
        return f"it holds more than weights and settings: {', '.join(sorted(foreign))}"
    return first_line(error)


def first_line(error: Exception) -> str:
    """The first line of an error's message; its class name if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def apply() -> None:
    """Install all fixes of this file in fairseq. May be called several times."""
    load_checkpoints_safely()
    restore_numpy_alias()
    keep_last_batch()
    fix_sentence_ranking()
    survive_overflow_on_cpu()
    attach_model_to_optimizers()
    attach_model_to_criterions()
    stop_loading_at_exit()
    leave_process_groups_at_exit()
