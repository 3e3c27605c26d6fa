"""Predictions of fine-tuned models (classes, values, options or tags) and their metrics.

For each kind of task, a subclass of ``Labels`` runs the model, converts its output to one
prediction per example and chooses the metrics. The probabilities of several models, or of several
samples of their attention, are averaged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from fairseq import utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from torch import Tensor, nn

from ..analysis import metrics
from ..core.errors import InputError
from ..uncertainty.sampling import sampled_attention, sampled_passes
from .token_tagging import IGNORED, TAGGING_HEAD

DIGITS = 6  # number of decimals in the output
MAX_TOKENS = 4000  # largest number of tokens in one forward pass of several copies of a batch


@dataclass(frozen=True)
class Prediction:
    """The prediction for one example; ``label`` is None in a set without labels."""

    id: int
    prediction: Any
    label: Any
    probabilities: Any = None


class Labels(ABC):
    """Runs a model on batches of a task, reads its predictions and computes metrics."""

    # An example may have several correct classes; then only ``metrics_of_set`` is used to evaluate.
    several_correct: ClassVar[bool] = False
    words_are_attended: ClassVar[bool] = True  # whether the model attends to tokens of a text

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Return the output of the model's head in fp32, with one row per example."""

    def scores(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Return the scores that are averaged over models and samples: by default probabilities."""
        return self.logits(model, batch).softmax(dim=-1)

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        """Return a mask of the positions where the model predicts something, (B,) or (B, T)."""
        return torch.ones(len(batch["id"]), dtype=torch.bool)

    def target(self, batch: dict[str, Any]) -> Tensor | None:
        """Return the indices of the correct classes, (B,) or (B, T); None without labels."""
        return batch.get("target")

    def class_name(self, number: int) -> str:
        return str(number)

    @abstractmethod
    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        """Yield the prediction for every example of a batch, given the averaged scores."""

    @abstractmethod
    def metrics(self, gold: list[Any], predicted: list[Any]) -> dict[str, float]:
        """Return the metrics by name, as fractions of 1."""

    def metrics_of_set(
        self, dataset: Any, indices: Any, examples: Any, predicted: Any
    ) -> dict[str, float]:
        """Return metrics that need more than one correct class, as fractions of 1; by default none.

        ``indices`` are all examples of ``dataset`` that were read; ``examples`` (N,) are those with
        a correct class, and ``predicted`` (N,) their predicted classes.
        """
        return {}


def _logits(model: nn.Module, net_input: dict[str, Tensor], head: str) -> Tensor:
    return model(**net_input, classification_head_name=head)[0].float()


def _rows(batch: dict[str, Any], *columns: Any) -> Iterator[tuple]:
    """Yield for every example its id and its entry in each column."""
    return zip(batch["id"].tolist(), *columns, strict=True)


def _rounded(probabilities: Tensor) -> list[float]:
    return [round(p, DIGITS) for p in probabilities.tolist()]


class Classification(Labels):
    """Predicts one class per sentence or sentence pair."""

    def __init__(self, task: SentencePredictionTask) -> None:
        super().__init__(task)
        symbols, number = task.label_dictionary, task.cfg.num_classes
        self.classes = symbols.symbols[symbols.nspecial : symbols.nspecial + number]
        if "<mask>" in self.classes or len(self.classes) < number:
            raise InputError(f"label/dict.txt has fewer than the {number} classes of the model")

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        head = self.task.cfg.classification_head_name
        return _logits(model, batch["net_input"], head)  # (B, classes)

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = self.target(batch)
        known = target is not None
        labels = [self.classes[x] for x in target] if known else [None] * len(scores)
        for example, row, label in _rows(batch, scores, labels):
            probabilities = dict(zip(self.classes, _rounded(row), strict=True))
            yield Prediction(example, self.classes[row.argmax()], label, probabilities)

    def target(self, batch: dict[str, Any]) -> Tensor | None:
        if "target" not in batch:
            return None
        numbers = batch["target"].flatten()
        if len(numbers) != len(batch["id"]) or not numbers.lt(len(self.classes)).all():
            raise InputError(
                f"the labels of the data do not fit the model, which has {len(self.classes)} "
                "classes and predicts one per example"
            )
        return numbers

    def class_name(self, number: int) -> str:
        return self.classes[number]

    def metrics(self, gold: list[str], predicted: list[str]) -> dict[str, float]:
        return metrics.classification(gold, predicted, self.classes)


class Regression(Labels):
    """Predicts one value per sentence or sentence pair, on the scale of the labels."""

    def __init__(self, task: SentencePredictionTask) -> None:
        super().__init__(task)
        if task.cfg.num_classes != 1:
            raise InputError(
                f"the model is a regression with {task.cfg.num_classes} targets; only one target "
                "(--num-classes 1) is supported"
            )

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return _logits(model, batch["net_input"], self.task.cfg.classification_head_name)  # (B, 1)

    def scores(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return self.logits(model, batch)

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = batch.get("target")
        labels = [None] * len(scores) if target is None else target.flatten().tolist()
        for example, value, label in _rows(batch, scores.flatten().tolist(), labels):
            label = None if label is None else round(label, DIGITS)
            yield Prediction(example, round(value, DIGITS), label)

    def metrics(self, gold: list[float], predicted: list[float]) -> dict[str, float]:
        return metrics.regression(gold, predicted)


class Choice(Labels):
    """Multiple choice: predicts the index of the correct option, counted from 0."""

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        head = next(iter(model.classification_heads))  # the task registers only one head
        options = [batch[f"net_input{1 + i}"] for i in range(self.task.args.num_classes)]
        by_option = [_logits(model, option, head) for option in options]
        return torch.cat(by_option, dim=1)  # (B, options)

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = batch.get("target")
        labels = [None] * len(scores) if target is None else target.tolist()
        for example, row, label in _rows(batch, scores, labels):
            yield Prediction(example, int(row.argmax()), label, _rounded(row))

    def metrics(self, gold: list[int], predicted: list[int]) -> dict[str, float]:
        return metrics.choice(gold, predicted)


class Tagging(Labels):
    """Predicts one tag and its probability per word, or per subword if the data has no labels."""

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return _logits(model, batch["net_input"], TAGGING_HEAD)  # (B, T, tags)

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = batch.get("target")
        words = self.predicted_positions(batch)
        highest, numbers = scores.max(dim=-1)
        predicted = self.task.tags_of(numbers, words)
        labels = [None] * len(scores) if target is None else self.task.tags_of(target, words)
        for example, tags, gold, p, kept in _rows(batch, predicted, labels, highest, words):
            yield Prediction(example, tags, gold, _rounded(p[kept]))

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        """Return a mask of the first subword of each word, (B, T).

        In data without labels the mask marks all subwords, because only labels show where words
        begin.
        """
        if "target" in batch:
            return batch["target"].ne(IGNORED)
        tokens, symbols = batch["net_input"]["src_tokens"], self.task.dictionary
        kept = tokens.ne(symbols.pad()) & tokens.ne(symbols.eos())
        if self.task.cfg.init_token is not None:
            kept[:, 0] = False
        return kept

    def class_name(self, number: int) -> str:
        return self.task.tags[number]

    def metrics(self, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
        return metrics.tagging(gold, predicted)


class NodeClasses(Labels):
    """Predicts one class per node of a graph."""

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(**batch["net_input"])[0].float()  # (B, n, classes)

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        return torch.ones_like(batch["net_input"]["nodes"], dtype=torch.bool)

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        nodes, target = batch["net_input"]["nodes"], batch["target"]
        for node, row, label in zip(
            nodes.flatten().tolist(),
            scores.flatten(0, 1),
            target.flatten().tolist(),
            strict=True,
        ):
            yield Prediction(node, int(row.argmax()), label, _rounded(row))

    def metrics(self, gold: list[int], predicted: list[int]) -> dict[str, float]:
        return metrics.choice(gold, predicted)


def sentence_labels(task: SentencePredictionTask) -> Labels:
    """The ``Labels`` of the task sentence_prediction: classes, or the values of a regression."""
    return Regression(task) if task.cfg.regression_target else Classification(task)


@torch.no_grad()
def mean_scores(
    labels: Labels, models: Sequence[nn.Module], batch: dict[str, Any], samples: int = 0
) -> Tensor:
    """Return the mean scores of a batch over models and samples of their attention, on the CPU.

    If ``samples`` is 0, each model makes one pass with its mean attention.
    """
    on_device = utils.move_to_cuda(batch) if next(models[0].parameters()).is_cuda else batch
    passes = max(1, samples)
    with sampled_attention(models) if samples else nullcontext():
        scores = [
            part.sum(dim=0)
            for model in models
            for part in sampled_passes(partial(labels.scores, model), on_device, passes, MAX_TOKENS)
        ]
    return (sum(scores) / (passes * len(models))).cpu()


def predict(
    labels: Labels, models: Sequence[nn.Module], batch: dict[str, Any], samples: int = 0
) -> Iterator[Prediction]:
    """Predict the examples of a batch by their ``mean_scores``."""
    return labels.read(batch, mean_scores(labels, models, batch, samples))
