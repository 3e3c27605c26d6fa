"""The predictions of ``--task question_answering``: the start and the end of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .labels import Labels, Prediction
from .question_answering import NO_ANSWER, SPAN_HEAD, span_logits


class WindowScores(NamedTuple):
    """The logits of one window. The score of an answer is the sum of its start and end logit."""

    start: np.ndarray  # (n,): of the n tokens of the context in the window
    end: np.ndarray  # (n,)
    no_answer: float  # of no answer: the sum of both logits of the first token


class SpanPositions(Labels):
    """Predicts two positions of a window: the start and the end of the answer.

    Models and samples are averaged by their logits, since the scores of the windows of one question
    are compared with each other.
    """

    def logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        inputs = batch["net_input"]
        output = model(**inputs, classification_head_name=SPAN_HEAD)[0]
        return span_logits(output, inputs["src_tokens"], self.task.dictionary)  # (B, 2, T)

    def scores(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return self.logits(model, batch)

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        return torch.ones(len(batch["id"]), 2, dtype=torch.bool)  # start and end

    def read(self, batch: dict[str, Any], scores: Tensor) -> Iterator[Prediction]:
        tokens, eos = batch["net_input"]["src_tokens"], self.task.dictionary.eos()
        target = batch.get("target")
        separators = 1 if self.task.cfg.separator_token is None else 2
        for row, number in enumerate(batch["id"].tolist()):
            question_end = int(tokens[row].eq(eos).nonzero()[0])
            length = int(batch["net_input"]["src_lengths"][row])
            context = slice(question_end + separators, length - 1)  # without the last </s>
            start, end = scores[row].double().numpy()
            found = WindowScores(
                start[context], end[context], float(start[NO_ANSWER] + end[NO_ANSWER])
            )
            yield Prediction(number, found, None if target is None else target[row].tolist())

    def metrics(self, gold: list[list[int]], predicted: list[list[int]]) -> dict[str, float]:
        """The share of windows whose start and end are both right."""
        right = [x == y for x, y in zip(gold, predicted, strict=True)]
        return {"exact": float(np.mean(right))}
