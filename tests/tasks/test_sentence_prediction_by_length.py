"""The task sentence_prediction_by_length: batches of sentences of similar length."""

from __future__ import annotations

from pathlib import Path

from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.sentence_prediction import SentencePredictionConfig
from omegaconf import OmegaConf


def test_batches_by_length_have_less_padding_and_the_same_sentences(
    classification_data: Path,
) -> None:
    """The order is random among sentences of equal length, and no sentence is lost."""
    padded, order = {}, {}
    for name in ("sentence_prediction", "sentence_prediction_by_length"):
        config = OmegaConf.structured(SentencePredictionConfig)
        config.update(dict(data=str(classification_data), num_classes=5, seed=1))
        config.update(dict(regression_target=False, classification_head_name="head"))
        task = TASK_REGISTRY[name].setup_task(config)
        data = task.load_dataset("train")
        batches = task.get_batch_iterator(data, max_sentences=16).frozen_batches
        lengths = [[data.num_tokens(row) for row in batch] for batch in batches]
        padded[name] = sum(len(row) * max(row) for row in lengths)
        order[name] = [int(row) for batch in batches for row in batch]
    plain, ours = padded.values()
    without_padding = sum(map(sum, lengths))
    assert ours < without_padding + 0.2 * (plain - without_padding)
    first, second = order.values()
    assert sorted(first) == sorted(second) == list(range(320))
    shortest = [row for row in second if data.num_tokens(row) == min(map(min, lengths))]
    assert shortest != sorted(shortest)
