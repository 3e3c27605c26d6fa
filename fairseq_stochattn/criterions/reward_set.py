"""The reward set of AttendOut: random samples of a split, the same samples on all ranks.

Each rank computes its own share of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.distributed import utils as distributed
from torch import Tensor, nn

from ..compat import UsageError


class RewardSet:
    """One split of a task's data, in batches of the size used for validation.

    ``flag`` is the flag that chooses the split, for error messages.
    """

    def __init__(self, task: Any, model: nn.Module, config: Any, split: str, flag: str) -> None:
        if split in config.dataset.train_subset.split(","):
            raise UsageError(f"{flag}: the model is trained on '{split}'; name another split")
        if split not in task.datasets:
            try:
                task.load_dataset(split, combine=False, epoch=1)
            except (FileNotFoundError, AssertionError) as error:  # which one depends on the task
                raise UsageError(f"{flag}: there is no split '{split}': {error}") from None
        self.dataset = task.dataset(split)
        positions = utils.resolve_max_positions(
            task.max_positions(), model.max_positions(), config.dataset.max_tokens_valid
        )
        self.indices = task.filter_indices_by_size(
            np.arange(len(self.dataset)), self.dataset, positions, ignore_invalid_inputs=True
        )
        if len(self.indices) == 0:
            raise UsageError(f"{flag}: no sample of '{split}' is short enough for the model")
        self.max_tokens = config.dataset.max_tokens_valid
        self.max_sentences = config.dataset.batch_size_valid

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        """The indices of ``count`` random samples, or of all samples if there are fewer."""
        return random.choice(self.indices, min(count, len(self.indices)), replace=False)

    def batches(self, indices: np.ndarray, device: torch.device) -> Iterator[dict[str, Any]]:
        """This rank's share of the samples, in batches of similar length."""
        ranks = distributed.get_data_parallel_world_size()
        mine = indices[distributed.get_data_parallel_rank() :: ranks] if ranks > 1 else indices
        if getattr(self.dataset, "supports_prefetch", False):
            self.dataset.prefetch(mine)
        by_length = np.array(sorted(mine, key=self.dataset.num_tokens), dtype=np.int64)
        if len(by_length) == 0:
            return
        for batch in self.dataset.batch_by_size(
            by_length, self.max_tokens, self.max_sentences, required_batch_size_multiple=1
        ):
            sample = self.dataset.collater([self.dataset[int(index)] for index in batch])
            yield utils.apply_to_sample(lambda x: x.to(device), sample)


def summed_over_ranks(values: Tensor) -> Tensor:
    """The sum of the values over all ranks, the same on every rank; changes them in place."""
    group = distributed.get_data_parallel_group()
    if distributed.get_world_size(group) > 1:
        distributed.all_reduce(values, group)
    return values
