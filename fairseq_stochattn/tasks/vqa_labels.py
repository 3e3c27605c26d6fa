"""Predictions of visual question answering, and the accuracy of the VQA challenge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from .labels import DIGITS, Labels, Prediction

SHOWN = 5  # number of answers in the output of stochattn-predict


class VQAAnswers(Labels):
    """Predicts one answer per question.

    The probabilities are the sigmoids of all answers, divided by their sum. The correct class, for
    every measure but the accuracy, is the answer that most people gave. A question without a known
    answer has no correct class: it only counts in the accuracy, as wrong.
    """

    several_correct = True
    words_are_attended = False  # but to the regions of an image, too

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        # The softmax of these log-probabilities divides the sigmoids by their sum.
        return F.logsigmoid(model(**batch["net_input"])[0].float())  # (B, answers)

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        if "target" not in batch:
            return super().predicted_positions(batch)
        return batch["target"].gt(0).any(dim=1)

    def target(self, batch: dict[str, Any]) -> Tensor | None:
        return batch["most_frequent"] if "target" in batch else None

    def class_name(self, number: int) -> str:
        return self.task.answers[number]

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        """Yield predictions; their labels are the scores of all answers of the question."""
        answers = self.task.answers
        target = batch.get("target")
        for row, (example, p) in enumerate(zip(batch["id"].tolist(), scores, strict=True)):
            likely = p.topk(min(SHOWN, len(answers))).indices.tolist()
            probabilities = {answers[x]: round(float(p[x]), DIGITS) for x in likely}
            label = None
            if target is not None:
                given = target[row].nonzero().flatten().tolist()
                label = {answers[x]: round(float(target[row, x]), DIGITS) for x in given}
            yield Prediction(example, answers[int(p.argmax())], label, probabilities)

    def metrics(self, gold: list[Mapping[str, float]], predicted: list[str]) -> dict[str, float]:
        scores = [found.get(answer, 0.0) for found, answer in zip(gold, predicted, strict=True)]
        return {"accuracy": float(np.mean(scores))}

    def metrics_of_set(
        self, dataset: Any, indices: np.ndarray, example: np.ndarray, predicted: np.ndarray
    ) -> dict[str, float]:
        if dataset.split.answers is None:
            return {}
        score = 0.0
        for question, answer in zip(example.tolist(), predicted.tolist(), strict=True):
            answers, scores = dataset.split.soft_answers(question)
            score += float(scores[answers == answer].sum())
        return {"accuracy": score / len(indices)}
