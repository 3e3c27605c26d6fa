"""fairseq's sentence_prediction with batches of sentences of similar length.

fairseq fills the batches of sentence_prediction at random, and pads every sentence to the longest
sentence in its batch. With 16 sentences per batch, padding increases the number of tokens by a
factor of 2.35 on RTE, 1.43 on MRPC and 1.81 on CoLA.
"""

from __future__ import annotations

from typing import Any

from fairseq.data import BaseWrapperDataset, SortDataset
from fairseq.tasks import register_task
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask


@register_task("sentence_prediction_by_length", dataclass=SentencePredictionConfig)
class SentencePredictionByLengthTask(SentencePredictionTask):
    """sentence_prediction with the same data, flags and checkpoints, but less padding.

    The order of the batches is still random.
    """

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> BaseWrapperDataset:
        shuffled = super().load_dataset(split, combine, **kwargs)
        if isinstance(shuffled, SortDataset):
            nested = shuffled.dataset
            # The last key is the primary one. Sentences of equal length are in random order.
            order = [*shuffled.sort_order, nested.sizes[0]]
            self.datasets[split] = SortDataset(nested, sort_order=order)
        return self.datasets[split]
