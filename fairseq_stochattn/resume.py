"""Makes resumed fairseq runs train on the same batches as an uninterrupted run.

fairseq composes the batches once per process, with a seed that depends on the epoch in which the
process starts. So a run that resumes in epoch 4 would have other batches than an uninterrupted run.
"""

from __future__ import annotations

from typing import Any

from fairseq.data.iterators import EpochBatchIterating
from fairseq.trainer import Trainer

FIRST_EPOCH = 1


def apply() -> None:
    """Patch fairseq: batches that all epochs reuse are always composed with the seed of epoch 1.

    With ``--update-epoch-batch-itr``, and if the data is loaded again for every epoch, fairseq
    composes new batches in each epoch, with the seed of that epoch. This needs no change. May be
    called several times.
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
