"""What fine-tuned models predict: classes, scores, options or tags, each with its metrics.

A kind knows how its task asks a model (probabilities, or the values of a regression), what that
means for each example, and which metrics apply. Several models, or several samples of their
attention, predict with the mean of their probabilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from fairseq.tasks.sentence_ranking import SentenceRankingTask
from torch import Tensor, nn

from fairseq_stochattn import metrics
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.sampling import sampled_attention, sampled_passes
from fairseq_stochattn.tasks.tagging import IGNORED, TAGGING_HEAD, TokenTaggingTask

DIGITS = 6
MAX_TOKENS = 4000  # of the copies of a batch that are run together


@dataclass(frozen=True)
class Prediction:
    """Of one example; ``label`` is None in a set without labels."""

    id: int
    prediction: Any
    label: Any
    probabilities: Any = None


class Kind(ABC):
    """How a task's predictions are made, read and measured."""

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def logits(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        """What a model says of a batch, one row an example, fp32."""

    def scores(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        """What is averaged over models and samples: probabilities."""
        return self.logits(model, sample).softmax(dim=-1)

    def asked(self, sample: dict[str, Any]) -> Tensor:
        """(B,) or (B, T): where something is predicted."""
        return torch.ones(len(sample["id"]), dtype=torch.bool)

    def target(self, sample: dict[str, Any]) -> Tensor | None:
        """(B,) or (B, T): the numbers of the right classes, None in a set without labels."""
        return sample.get("target")

    def class_name(self, number: int) -> str:
        return str(number)

    @abstractmethod
    def read(self, sample: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        """The examples of a batch."""

    @abstractmethod
    def metrics(self, gold: list[Any], predicted: list[Any]) -> dict[str, float]:
        """Fractions of 1 by name."""


def _logits(model: nn.Module, net_input: dict[str, Tensor], head: str) -> Tensor:
    return model(**net_input, classification_head_name=head)[0].float()


def _rows(sample: dict[str, Any], *columns: Any) -> Iterator[tuple]:
    return zip(sample["id"].tolist(), *columns, strict=True)


def _rounded(probabilities: Tensor) -> list[float]:
    return [round(p, DIGITS) for p in probabilities.tolist()]


class Classification(Kind):
    """One class a sentence or pair."""

    def __init__(self, task: SentencePredictionTask) -> None:
        super().__init__(task)
        symbols, number = task.label_dictionary, task.cfg.num_classes
        self.classes = symbols.symbols[symbols.nspecial : symbols.nspecial + number]
        if "<mask>" in self.classes or len(self.classes) < number:
            raise UsageError(f"label/dict.txt has fewer than the {number} classes of the model")

    def logits(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        head = self.task.cfg.classification_head_name
        return _logits(model, sample["net_input"], head)  # (B, classes)

    def read(self, sample: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = self.target(sample)
        known = target is not None
        labels = [self.classes[x] for x in target] if known else [None] * len(scores)
        for number, row, label in _rows(sample, scores, labels):
            probabilities = dict(zip(self.classes, _rounded(row), strict=True))
            yield Prediction(number, self.classes[row.argmax()], label, probabilities)

    def target(self, sample: dict[str, Any]) -> Tensor | None:
        if "target" not in sample:
            return None
        numbers = sample["target"].flatten()
        if len(numbers) != len(sample["id"]) or not numbers.lt(len(self.classes)).all():
            raise UsageError(f"the data has other labels than one of {len(self.classes)} classes")
        return numbers

    def class_name(self, number: int) -> str:
        return self.classes[number]

    def metrics(self, gold: list[str], predicted: list[str]) -> dict[str, float]:
        return metrics.classification(gold, predicted, self.classes)


class Regression(Kind):
    """One number a sentence or pair, on the scale of the labels."""

    def __init__(self, task: SentencePredictionTask) -> None:
        super().__init__(task)
        if task.cfg.num_classes != 1:
            raise UsageError(f"one target of a regression is read, not {task.cfg.num_classes}")

    def logits(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        return _logits(model, sample["net_input"], self.task.cfg.classification_head_name)  # (B, 1)

    def scores(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        return self.logits(model, sample)

    def read(self, sample: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = sample.get("target")
        labels = [None] * len(scores) if target is None else target.flatten().tolist()
        for number, value, label in _rows(sample, scores.flatten().tolist(), labels):
            label = None if label is None else round(label, DIGITS)
            yield Prediction(number, round(value, DIGITS), label)

    def metrics(self, gold: list[float], predicted: list[float]) -> dict[str, float]:
        return metrics.regression(gold, predicted)


class Choice(Kind):
    """The number of the right option."""

    def logits(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        head = next(iter(model.classification_heads))  # the task has registered no other
        options = [sample[f"net_input{1 + i}"] for i in range(self.task.args.num_classes)]
        return torch.cat(
            [_logits(model, option, head) for option in options], dim=1
        )  # (B, options)

    def read(self, sample: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = sample.get("target")
        labels = [None] * len(scores) if target is None else target.tolist()
        for number, row, label in _rows(sample, scores, labels):
            yield Prediction(number, int(row.argmax()), label, _rounded(row))

    def metrics(self, gold: list[int], predicted: list[int]) -> dict[str, float]:
        return metrics.choice(gold, predicted)


class Tagging(Kind):
    """A tag for every word and its probability; without labels, for every subword."""

    def logits(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        return _logits(model, sample["net_input"], TAGGING_HEAD)  # (B, T, tags)

    def read(self, sample: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        target = sample.get("target")
        words = self.asked(sample)
        highest, numbers = scores.max(dim=-1)
        predicted = self.task.tags_of(numbers, words)
        labels = [None] * len(scores) if target is None else self.task.tags_of(target, words)
        for number, tags, gold, p, kept in _rows(sample, predicted, labels, highest, words):
            yield Prediction(number, tags, gold, _rounded(p[kept]))

    def asked(self, sample: dict[str, Any]) -> Tensor:
        """At the first subword of a word where that is known."""
        if "target" in sample:
            return sample["target"].ne(IGNORED)
        tokens, symbols = sample["net_input"]["src_tokens"], self.task.dictionary
        kept = tokens.ne(symbols.pad()) & tokens.ne(symbols.eos())
        if self.task.cfg.init_token is not None:
            kept[:, 0] = False
        return kept

    def class_name(self, number: int) -> str:
        return self.task.tags[number]

    def metrics(self, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
        return metrics.tagging(gold, predicted)


def kind_of(task: Any) -> Kind:
    """What this task predicts."""
    if isinstance(task, SentencePredictionTask):
        return Regression(task) if task.cfg.regression_target else Classification(task)
    if isinstance(task, SentenceRankingTask):
        return Choice(task)
    if isinstance(task, TokenTaggingTask):
        return Tagging(task)
    raise UsageError(
        f"the model was trained as {type(task).__name__}, which predicts no labels: fine-tune it "
        "with --task sentence_prediction, sentence_ranking or token_tagging first"
    )


@torch.no_grad()
def predict(
    kind: Kind, models: Sequence[nn.Module], sample: dict[str, Any], samples: int = 0
) -> Iterator[Prediction]:
    """The examples of a batch, by the mean over models and ``samples`` of their attention."""
    there = utils.move_to_cuda(sample) if next(models[0].parameters()).is_cuda else sample
    passes = max(1, samples)
    with sampled_attention(models) if samples else nullcontext():
        scores = [
            part.sum(dim=0)
            for model in models
            for part in sampled_passes(partial(kind.scores, model), there, passes, MAX_TOKENS)
        ]
    return kind.read(sample, (sum(scores) / (passes * len(models))).cpu())
