"""The reward set of AttendOut: random samples of a held-out set, the same samples on all ranks.

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
        self.select(task, model, config, np.arange(len(self.dataset)))
        if len(self.indices) == 0:
            raise UsageError(f"{flag}: no sample of '{split}' is short enough for the model")

    def select(self, task: Any, model: nn.Module, config: Any, indices: np.ndarray) -> None:
        """Keep those of the indices whose samples are short enough for the model."""
        positions = utils.resolve_max_positions(
            task.max_positions(), model.max_positions(), config.dataset.max_tokens_valid
        )
        self.indices = task.filter_indices_by_size(
            indices, self.dataset, positions, ignore_invalid_inputs=True
        )
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


class HeldOut(RewardSet):
    """Every N-th example of the training set, which the model is then not trained on.

    The training set is loaded after the training loop is built, and anew in epochs of other
    shards. So the examples are taken out where the task chooses those of an epoch.
    """

    def __init__(self, task: Any, model: nn.Module, config: Any, every: int) -> None:
        self.task, self.model, self.config, self.every = task, model, config, every
        self.split = config.dataset.train_subset
        self.dataset: Any = None
        self.choose = task.filter_indices_by_size
        task.filter_indices_by_size = self.without_held_out

    def without_held_out(self, indices: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """The task's own choice of examples; without the reward set in the training set."""
        if dataset is self.task.datasets.get(self.split):
            self.refresh(dataset)
            indices = np.asarray(indices)
            indices = indices[~self.is_held_out(indices)]
        return self.choose(indices, dataset, *args, **kwargs)

    def is_held_out(self, indices: np.ndarray) -> np.ndarray:
        return indices % self.every == self.every - 1

    def refresh(self, dataset: Any) -> None:
        """Take the reward set from this training set."""
        self.dataset = dataset
        everything = np.arange(len(dataset))
        held_out = everything[self.is_held_out(everything)]
        positions = utils.resolve_max_positions(
            self.task.max_positions(), self.model.max_positions(), self.config.dataset.max_tokens
        )
        self.indices = self.choose(held_out, dataset, positions, ignore_invalid_inputs=True)
        if len(self.indices) == 0:
            raise UsageError(
                f"--attendout-holdout {self.every}: no reward set in {len(everything)} training "
                "examples; lower it, or name a split with --attendout-subset"
            )
        self.max_tokens = self.config.dataset.max_tokens_valid
        self.max_sentences = self.config.dataset.batch_size_valid

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        if self.dataset is None:
            raise UsageError("--criterion attendout: this task needs --attendout-subset")
        return super().draw(count, random)


def summed_over_ranks(values: Tensor) -> Tensor:
    """The sum of the values over all ranks, the same on every rank; changes them in place."""
    group = distributed.get_data_parallel_group()
    if distributed.get_world_size(group) > 1:
        distributed.all_reduce(values, group)
    return values
