"""A plugin for ``--user-dir``: after every update, each rank prints a hash of its whole state.

fairseq saves checkpoints on rank 0 only, so the other ranks can only be compared in this way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
from fairseq.trainer import Trainer

import fairseq_stochattn.models  # noqa: F401  (registers the methods)

train_step = Trainer.train_step


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of nested dictionaries and lists."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


def digest(state: Any) -> str:
    """Return a hash of all bits of all tensors."""
    found = hashlib.sha256()
    for tensor in tensors(state):
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@wraps(train_step)
def printing_train_step(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
    result = train_step(trainer, *args, **kwargs)
    parts = (
        trainer.get_model().state_dict(),
        trainer.get_criterion().state_dict(),
        trainer.optimizer.state_dict(),
    )
    print("state", trainer.get_num_updates(), *map(digest, parts), flush=True)
    return result


Trainer.train_step = printing_train_step
