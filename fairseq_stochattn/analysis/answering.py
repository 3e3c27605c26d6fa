"""The answers of a model to all questions of a data set, under K samples of its attention."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq import utils
from torch import Tensor, nn

from fairseq_stochattn.analysis.questions import Decode, Question
from fairseq_stochattn.analysis.uncertainty import Answers, summarize
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.sampling import one_query_row_a_source, sampled_attention, sampled_passes

ELEMENTS = 2**22  # most probabilities that are held at a time; more was measured to be slower


@dataclass(frozen=True)
class Answered:
    """N answers, of which example each is, and which of those of its example."""

    answers: Answers
    example: np.ndarray
    place: np.ndarray


@torch.no_grad()
def answer(
    question: Question,
    model: nn.Module,
    batches: Iterable[dict[str, Any]],
    samples: int,
    max_tokens: int,
    dropout: bool = False,
    labelled: bool = True,
) -> Answered:
    """Ask for every batch once, ``samples`` copies of it in as few passes as ``max_tokens`` allows.

    With 0 samples the attention is its mean. With ``dropout`` that is sampled too. What is not
    ``labelled`` may have labels of any kind, which are not looked at.
    """
    parts, examples, places = [], [], []
    cuda = next(model.parameters()).is_cuda
    sampling = sampled_attention([model], dropout) if samples else nullcontext()
    with sampling, one_query_row_a_source([model]):
        for sample in batches:
            asked = question.asked(sample)  # (B, …)
            if not asked.any():
                continue
            target = question.target(sample) if labelled else None
            there = utils.move_to_cuda(sample) if cuda else sample
            passes = sampled_passes(
                partial(question.features, model), there, max(1, samples), max_tokens
            )
            features = torch.cat([x[:, asked] for x in passes])  # (K, n, d)
            wanted = None if target is None else target[asked].to(features.device)
            parts += _in_slices(question, model, features, wanted)
            counts = asked.view(len(asked), -1).sum(dim=1)
            examples.append(np.repeat(sample["id"].numpy(), counts.numpy()))
            places += [np.arange(count) for count in counts.tolist()]
    if not parts:
        raise UsageError("the data has nothing to predict")
    return Answered(Answers.joined(parts), np.concatenate(examples), np.concatenate(places))


def _in_slices(
    question: Question, model: nn.Module, features: Tensor, target: Tensor | None
) -> list[Answers]:
    """A vocabulary makes many probabilities: few positions at a time."""
    classes = question.log_probs(model, features[:1, :1]).size(-1)
    size = max(1, ELEMENTS // (classes * len(features)))
    found = []
    for start in range(0, features.size(1), size):
        part = slice(start, start + size)
        log_probs = question.log_probs(model, features[:, part])
        found.append(summarize(log_probs, None if target is None else target[part]))
    return found


def least_certain(
    question: Question, answered: Answered, dataset: Any, decode: Decode, most: int = 20
) -> list[dict[str, Any]]:
    """The answers of least confidence, with the text that they are about."""
    answers = answered.answers
    order = np.argsort(answers.confidence, kind="stable")[:most]
    return [_shown(question, answered, int(index), dataset, decode) for index in order]


def _shown(
    question: Question, answered: Answered, index: int, dataset: Any, decode: Decode
) -> dict[str, Any]:
    answers, example = answered.answers, int(answered.example[index])
    sample = dataset.collater([dataset[example]])
    position = question.asked(sample).flatten().nonzero()[answered.place[index]]
    target = None if answers.target is None else int(answers.target[index])
    return {
        "id": example,
        "text": question.show(sample, int(position), decode),
        "prediction": question.class_name(int(answers.prediction[index])),
        "target": None if target is None else question.class_name(target),
        "confidence": float(answers.confidence[index]),
        "entropy": float(answers.predictive_entropy[index]),
        "mutual_information": float(answers.mutual_information[index]),
    }
