"""Computes the predictions of a model for a whole data set, from K samples of its attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import utils
from torch import Tensor, nn

from ..core.errors import InputError
from ..tasks.questions import Decode, Question
from ..uncertainty.measures import Answers, summarize
from ..uncertainty.sampling import is_random, sampled_attention, sampled_passes
from .output_scores import one_query_row_per_source
from .varying_words import WordsAt

# Largest number of probabilities that are computed at once; larger limits were slower.
ELEMENTS = 2**22


@dataclass(frozen=True)
class Answered:
    """N predictions, and the place of each of them in the data set."""

    answers: Answers
    example: np.ndarray  # (N,): the id of the example that the prediction belongs to
    place: np.ndarray  # (N,): the index of the prediction among those for its example


@torch.no_grad()
def answer(
    question: Question,
    models: Sequence[nn.Module],
    batches: Iterable[dict[str, Any]],
    samples: int,
    max_tokens: int,
    dropout: bool = False,
    labelled: bool = True,
) -> Answered:
    """Return the predictions of a model, or of an ensemble, for all batches.

    Each random model contributes ``samples`` samples of its attention, or one pass with its mean
    attention if ``samples`` is 0. A model that is not random makes one pass, which counts as much
    as all samples of another model. Each sample needs one copy of the batch. The copies of a batch
    run in as few passes as ``max_tokens`` allows. With ``dropout``, dropout is sampled too. If
    ``labelled`` is False, the targets in the data are ignored.
    """
    members = [_Member(question, x, samples, dropout, max_tokens) for x in models]
    parts, examples, places = [], [], []
    cuda = next(models[0].parameters()).is_cuda
    with one_query_row_per_source(models):
        for batch in batches:
            predicted = question.predicted_positions(
                batch
            )  # (B, …): True at positions with a class to predict
            if not predicted.any():
                continue
            target = question.target(batch) if labelled else None
            on_device = utils.move_to_cuda(batch) if cuda else batch
            features = [x.features(on_device, predicted, target is not None) for x in members]
            if target is not None:
                target = target[predicted].to(features[0].used.device)  # (n,)
            parts += _summarize_in_slices(members, features, target)
            counts = predicted.view(len(predicted), -1).sum(dim=1)
            examples.append(np.repeat(batch["id"].numpy(), counts.numpy()))
            places += [np.arange(count) for count in counts.tolist()]
    if not parts:
        raise InputError("the data has nothing to predict")
    return Answered(Answers.joined(parts), np.concatenate(examples), np.concatenate(places))


class _Features(NamedTuple):
    """The inputs of a model's last layer at the n predicted positions of a batch."""

    used: Tensor  # (K, n, d): of K samples, or (1, n, d) of the mean attention
    mean_attention: Tensor | None  # (1, n, d); None if it is not needed, or the same as ``used``


class _Member:
    """One model of an ensemble: computes features, and log-probabilities from features."""

    def __init__(
        self, question: Question, model: nn.Module, samples: int, dropout: bool, max_tokens: int
    ) -> None:
        self.question, self.model, self.max_tokens = question, model, max_tokens
        self.weight = max(1, samples)  # the number of samples that it has in the mean
        self.samples = samples if is_random(model, dropout) else 0
        self.dropout = dropout

    def features(self, batch: dict[str, Any], predicted: Tensor, compare: bool) -> _Features:
        """Return the features at the positions ``predicted`` (B, …) of a batch.

        With ``compare``, they include those of the mean attention besides those of samples.
        """
        if not self.samples:
            return _Features(self._run(batch, predicted, 1), None)
        with sampled_attention([self.model], self.dropout):
            sampled = self._run(batch, predicted, self.samples)
        return _Features(sampled, self._run(batch, predicted, 1) if compare else None)

    def _run(self, batch: dict[str, Any], predicted: Tensor, copies: int) -> Tensor:
        forward = partial(self.question.features, self.model)
        passes = sampled_passes(forward, batch, copies, self.max_tokens)
        return torch.cat([x[:, predicted] for x in passes])  # (K, n, d)

    def log_probs(self, features: Tensor) -> Tensor:
        """Return log-probabilities (K, n, classes) for features (K, n, d)."""
        return self.question.log_probs(self.model, features)


def _summarize_in_slices(
    members: Sequence[_Member], features: Sequence[_Features], target: Tensor | None
) -> list[Answers]:
    """Summarize the predictions from features, a few of the n positions at a time.

    If the classes are a vocabulary, the probabilities at all positions do not fit into memory.
    """
    classes = members[0].log_probs(features[0].used[:1, :1]).size(-1)
    rows = sum(member.weight for member in members)
    size = max(1, ELEMENTS // (classes * rows))
    summaries = []
    for start in range(0, features[0].used.size(1), size):
        part = slice(start, start + size)
        used, mean_attention = [], []
        for member, found in zip(members, features, strict=True):
            probs = member.log_probs(found.used[:, part])
            # A member without samples has the same weight as the others.
            used.append(probs.expand(member.weight, -1, -1))
            if target is not None:
                central = found.mean_attention
                mean_attention.append(
                    probs if central is None else member.log_probs(central[:, part])
                )
        summaries.append(
            summarize(
                torch.cat(used),
                None if target is None else target[part],
                torch.cat(mean_attention) if mean_attention else None,
            )
        )
    return summaries


def least_certain(
    question: Question,
    answered: Answered,
    dataset: Any,
    decode: Decode,
    words_at: WordsAt | None = None,
    count: int = 20,
) -> list[dict[str, Any]]:
    """The ``count`` predictions with the lowest confidence, each with the text of its example.

    With ``words_at`` of ``varying_words``, each also has the words that it attends to.
    """
    answers = answered.answers
    order = np.argsort(answers.confidence, kind="stable")[:count]
    return [_describe(question, answered, int(index), dataset, decode, words_at) for index in order]


def _describe(
    question: Question,
    answered: Answered,
    index: int,
    dataset: Any,
    decode: Decode,
    words_at: WordsAt | None,
) -> dict[str, Any]:
    """Prediction number ``index`` as JSON: text, predicted class, target and uncertainty."""
    answers, example = answered.answers, int(answered.example[index])
    batch = dataset.collater([dataset[example]])
    position = question.predicted_positions(batch).flatten().nonzero()[answered.place[index]]
    target = None if answers.target is None else int(answers.target[index])
    described = {
        "id": example,
        "text": question.show(batch, int(position), decode),
        "prediction": question.class_name(int(answers.prediction[index])),
        "target": None if target is None else question.class_name(target),
        "confidence": float(answers.confidence[index]),
        "entropy": float(answers.predictive_entropy[index]),
        "mutual_information": float(answers.mutual_information[index]),
    }
    # Not in multiple choice, which has several texts.
    if words_at is not None and question.made_at_tokens and "net_input" in batch:
        described["words"] = words_at(batch, int(position))
    return described
