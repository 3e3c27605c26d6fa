"""Resumed runs of fairseq train on the batches of an uninterrupted run.

fairseq composes the batches once per process, from a permutation with the seed of its first epoch.
A process that resumes in epoch 4 therefore had other batches than one that started in epoch 1.
"""

from __future__ import annotations

from typing import Any

from fairseq.data.iterators import EpochBatchIterating
from fairseq.trainer import Trainer

FIRST_EPOCH = 1


def apply() -> None:
    """Compose batches that are reused over epochs with the seed of the first epoch, always.

    With ``--update-epoch-batch-itr`` and for data that is loaded anew for every epoch, fairseq
    composes the batches of each epoch with its own seed, which needs no change. May be called
    several times.
    """
    plain = Trainer.get_train_iterator
    if plain.__module__ == __name__:
        return

    def get_train_iterator(self: Trainer, *args: Any, **flags: Any) -> EpochBatchIterating:
        task, make = self.task, self.task.get_batch_iterator

        def get_batch_iterator(dataset: Any, **options: Any) -> EpochBatchIterating:
            reused = getattr(dataset, "can_reuse_epoch_itr_across_epochs", False)
            if reused and not options.get("update_epoch_batch_itr") and not sharded(task):
                options["epoch"] = FIRST_EPOCH
            return make(dataset=dataset, **options)

        task.get_batch_iterator = get_batch_iterator
        try:
            return plain(self, *args, **flags)
        finally:
            del task.get_batch_iterator

    Trainer.get_train_iterator = get_train_iterator


def sharded(task: Any) -> bool:
    """Whether the training data is in several folders, one of which is loaded per epoch."""
    return task.has_sharded_data("train")
