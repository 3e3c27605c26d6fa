"""Training on several ranks: CPU support, timeouts, and one-line errors for lost connections.

``apply`` patches fairseq in place, like ``compat.apply``. Without it, a rank that is cut off waits
for torch's timeout (30 minutes with gloo) and ends with a traceback: fairseq's
``--heartbeat-timeout N`` cannot interrupt this wait. Here N is also the timeout of all
communication between the ranks.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import distributed_fairseq_model
from fairseq.trainer import Trainer
from torch import distributed, nn

from .compat import UsageError

# What torch, gloo and NCCL report if another rank has ended or cannot be reached.
_LOST = re.compile(
    r"timed out|timeout|connection (closed|reset|refused)|broken pipe|was aborted"
    r"|no route to host|network is unreachable",
    re.IGNORECASE,
)


def allow_ddp_on_cpu() -> None:
    """Make ``--ddp-backend pytorch_ddp`` work on the CPU, where torch accepts no device ids."""
    plain = distributed_fairseq_model.DistributedDataParallel
    if getattr(plain, "accepts_cpu", False):
        return

    class CpuDistributedDataParallel(plain):
        accepts_cpu = True

        def __init__(self, module: nn.Module, **options: Any) -> None:
            if next(module.parameters()).device.type == "cpu":
                options |= {"device_ids": None, "output_device": None}
            super().__init__(module, **options)

    distributed_fairseq_model.DistributedDataParallel = CpuDistributedDataParallel


def end_hanging_communication() -> None:
    """Make ``--heartbeat-timeout N`` the timeout of the process group that fairseq trains with.

    fairseq's own check sends SIGINT after N seconds without a forward pass, which has no effect
    while torch communicates. That check stays, for all other reasons to hang, but it now waits
    1.5·N seconds, so that the communication error comes first.
    """
    plain = Trainer.__init__
    if getattr(plain, "sets_timeout", False):
        return

    @wraps(plain)
    def init(trainer: Trainer, cfg: Any, *args: Any, **kwargs: Any) -> None:
        seconds = cfg.distributed_training.heartbeat_timeout
        if seconds > 0 and distributed.is_initialized():
            group = distributed.new_group(timeout=timedelta(seconds=seconds))
            distributed_utils.get_global_group._global_group = group
        plain(trainer, cfg, *args, **kwargs)

    class LaterTimeoutWrapper(distributed_fairseq_model.DistributedTimeoutWrapper):
        def __init__(self, module: nn.Module, timeout: int) -> None:
            super().__init__(module, timeout * 3 // 2)

        def stop_timeout(self) -> None:
            """End the thread at once; fairseq would wait for the whole timeout."""
            self._terminated = True
            while self._heartbeat_thread is not None and self._heartbeat_thread.is_alive():
                self._heartbeat.set()
                self._heartbeat_thread.join(timeout=0.01)

    init.sets_timeout = True
    Trainer.__init__ = init
    distributed_fairseq_model.DistributedTimeoutWrapper = LaterTimeoutWrapper


def explain_lost_connections() -> None:
    """Make every rank end with a one-line error when it loses the connection to the others."""
    for owner, name in (
        (Trainer, "train_step"),
        (Trainer, "valid_step"),
        (Trainer, "load_checkpoint"),
        (distributed_utils, "distributed_main"),
    ):
        plain = getattr(owner, name)
        if not getattr(plain, "explains_lost_connections", False):
            setattr(owner, name, _explaining(plain))


def _explaining(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        with one_line_if_lost():
            return plain(*args, **kwargs)

    explaining.explains_lost_connections = True
    return explaining


@contextmanager
def one_line_if_lost() -> Iterator[None]:
    """Within the block, an error of the communication between ranks becomes a ``UsageError``."""
    try:
        yield
    except RuntimeError as error:
        cause = lost_connection(error)
        if cause is None:
            raise
        raise UsageError(
            f"the connection to the other ranks was lost ({cause}). End all ranks, then start them "
            "again with the same commands: training resumes from checkpoint_last.pt in --save-dir."
        ) from None


def lost_connection(error: RuntimeError) -> str | None:
    """Return the cause if the error says that another rank cannot be reached; otherwise None."""
    message = str(error)
    if not isinstance(error, distributed.DistError) and "gloo/" not in message:
        return None
    if not _LOST.search(message):
        return None
    line = re.sub(r"^\[\S+:\d+\] ", "", message.splitlines()[0])  # without torch's source line
    return line.split(". ")[0].rstrip(".")


def require_one_checkpoint() -> None:
    """Make the ranks end with a one-line error if they do not all find the same checkpoint.

    fairseq reads the checkpoint on rank 0 and broadcasts it. A rank that does not find the file
    does not take part in the broadcast, so the ranks would wait for each other.
    """
    plain = Trainer.load_checkpoint
    if getattr(plain, "requires_one_checkpoint", False):
        return

    @wraps(plain)
    def load_checkpoint(trainer: Trainer, filename: str, *args: Any, **kwargs: Any) -> Any:
        ranks, rank = trainer.data_parallel_world_size, trainer.data_parallel_rank
        if ranks > 1:
            found = torch.zeros(ranks, dtype=torch.long, device=trainer.device)
            exists = PathManager.isfile(filename)
            found[rank] = zlib.crc32(Path(filename).name.encode()) if exists else 0
            distributed_utils.all_reduce(found, trainer.data_parallel_process_group)
            if (found != found[0]).any():
                raise UsageError(
                    f"the ranks find different checkpoints: {filename} "
                    f"{'exists' if exists else 'does not exist'} on rank {rank}. "
                    "--save-dir and --restore-file must be on a disk that all hosts share."
                )
        return plain(trainer, filename, *args, **kwargs)

    load_checkpoint.requires_one_checkpoint = True
    Trainer.load_checkpoint = load_checkpoint


def leave_frozen_criterions_unwrapped() -> None:
    """Train a criterion whose parameters are all frozen without a wrapper for several ranks.

    torch's DistributedDataParallel refuses it, and there are no gradients to exchange.
    """
    plain = Trainer.criterion.fget
    if getattr(plain, "leaves_frozen_criterions", False):
        return

    def criterion(trainer: Trainer) -> nn.Module:
        own = trainer.get_criterion()
        trains = any(parameter.requires_grad for parameter in own.parameters())
        return plain(trainer) if trains else own

    criterion.leaves_frozen_criterions = True
    Trainer.criterion = property(criterion)


def apply() -> None:
    """Install all fixes of this file in fairseq. May be called several times."""
    allow_ddp_on_cpu()
    end_hanging_communication()
    require_one_checkpoint()
    explain_lost_connections()
    leave_frozen_criterions_unwrapped()
