"""Random samples of a held-out set: the same draw on all ranks, each of which has its share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.distributed import utils as distributed
from torch import Tensor, nn

from fairseq_stochattn.errors import UsageError


class HeldOut:
    """A split of a task's data, in batches as large as those of validation."""

    def __init__(self, task: Any, model: nn.Module, config: Any, split: str, flag: str) -> None:
        if split in config.dataset.train_subset.split(","):
            raise UsageError(f"{flag}: '{split}' is what the model is trained on; name another set")
        if split not in task.datasets:
            try:
                task.load_dataset(split, combine=False, epoch=1)
            except (FileNotFoundError, AssertionError) as error:  # tasks differ in it
                raise UsageError(f"{flag}: there is no set '{split}': {error}") from None
        self.dataset = task.dataset(split)
        positions = utils.resolve_max_positions(
            task.max_positions(), model.max_positions(), config.dataset.max_tokens_valid
        )
        everything = np.arange(len(self.dataset))
        self.indices = task.filter_indices_by_size(
            everything, self.dataset, positions, ignore_invalid_inputs=True
        )
        if len(self.indices) == 0:
            raise UsageError(f"{flag}: no sample of '{split}' is short enough for the model")
        self.max_tokens = config.dataset.max_tokens_valid
        self.max_sentences = config.dataset.batch_size_valid

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        """The numbers of ``count`` samples, or of all if there are not so many."""
        return random.choice(self.indices, min(count, len(self.indices)), replace=False)

    def batches(self, numbers: np.ndarray, device: torch.device) -> Iterator[dict[str, Any]]:
        """This rank's share of the samples."""
        ranks = distributed.get_data_parallel_world_size()
        mine = numbers[distributed.get_data_parallel_rank() :: ranks] if ranks > 1 else numbers
        if getattr(self.dataset, "supports_prefetch", False):
            self.dataset.prefetch(mine)
        by_length = np.array(sorted(mine, key=self.dataset.num_tokens), dtype=np.int64)
        if len(by_length) == 0:
            return
        for batch in self.dataset.batch_by_size(
            by_length, self.max_tokens, self.max_sentences, required_batch_size_multiple=1
        ):
            sample = self.dataset.collater([self.dataset[int(number)] for number in batch])
            yield utils.apply_to_sample(lambda x: x.to(device), sample)


def summed_over_ranks(values: Tensor) -> Tensor:
    """The sum of all ranks' values, on each of them."""
    group = distributed.get_data_parallel_group()
    if distributed.get_world_size(group) > 1:
        distributed.all_reduce(values, group)
    return values
