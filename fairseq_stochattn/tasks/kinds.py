"""The table of tasks: the criterion of each task, and how its models are evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairseq.tasks import TASK_REGISTRY

from ..compat import UsageError
from ..core.errors import InputError
from . import labels, questions, span_labels
from .vqa_labels import VQAAnswers


@dataclass(frozen=True)
class TaskKind:
    """One task, of fairseq or of this plugin."""

    task: str  # the name of the task in fairseq's registry
    criterion: str  # the criterion that the task is trained with
    pretraining: bool = False
    # Creates the object that reads predictions and scores them; None if the task has no labels.
    labels: Callable[[Any], labels.Labels] | None = None
    # Creates the object whose predictions are measured for uncertainty; None: those of ``labels``.
    question: Callable[[Any], questions.Question] | None = None


# A subclass of a task must precede the task itself, since the first match is used.
KINDS = (
    TaskKind("translation", "label_smoothed_cross_entropy", question=questions.TranslationTokens),
    TaskKind("graph_to_text", "label_smoothed_cross_entropy", question=questions.GraphTextTokens),
    TaskKind("language_modeling", "cross_entropy", question=questions.NextTokens),
    TaskKind("electra", "electra", pretraining=True),
    TaskKind("masked_lm", "masked_lm", pretraining=True, question=questions.MaskedTokens),
    TaskKind("sentence_prediction", "sentence_prediction", labels=labels.sentence_labels),
    TaskKind("sentence_ranking", "sentence_ranking", labels=labels.Choice),
    TaskKind("token_tagging", "token_tagging", labels=labels.Tagging),
    TaskKind("question_answering", "question_answering", labels=span_labels.SpanPositions),
    TaskKind("node_classification", "node_classification", labels=labels.NodeClasses),
    TaskKind("vqa", "vqa", labels=VQAAnswers),
)
# Criterions that the criterions of this plugin can wrap.
WRAPPABLE = (*dict.fromkeys(kind.criterion for kind in KINDS), "adaptive_loss")
PRETRAINING = tuple(kind.criterion for kind in KINDS if kind.pretraining)


def task_kind(task: Any) -> TaskKind | None:
    """The entry of a task in the table, or None if the table does not contain the task."""
    return next((kind for kind in KINDS if isinstance(task, TASK_REGISTRY[kind.task])), None)


def is_task(task: Any, name: str) -> bool:
    """Whether the task is the named one or a subclass of it."""
    return isinstance(task, TASK_REGISTRY[name])


def criterion_name(chosen: str, task: Any) -> str:
    """The criterion to wrap: the value of ``--task-criterion``, or for ``auto`` the task's own."""
    known = ", ".join(WRAPPABLE)
    if chosen == "auto":
        kind = task_kind(task)
        if kind is None:
            raise UsageError(
                f"--task-criterion: {type(task).__name__} has no default, choose one of {known}"
            )
        return kind.criterion
    if chosen not in WRAPPABLE:
        raise UsageError(f"--task-criterion: unknown criterion '{chosen}' (known: {known})")
    return chosen


def default_criterion(task_name: str) -> str:
    """The criterion that the named task is trained with."""
    return next(kind.criterion for kind in KINDS if kind.task == task_name)


def labels_of(task: Any) -> labels.Labels:
    """The ``Labels`` of a task; raises ``InputError`` if the task has no labels."""
    kind = task_kind(task)
    if kind is None or kind.labels is None:
        raise InputError(
            f"the model was trained as {type(task).__name__}, which predicts no labels: fine-tune "
            "it with --task sentence_prediction, sentence_ranking, token_tagging or "
            "question_answering first"
        )
    return kind.labels(task)


def question_of(task: Any) -> questions.Question:
    """The ``Question`` of a task; raises ``InputError`` if the task predicts no classes."""
    kind = task_kind(task)
    if kind is not None and kind.question is not None:
        return kind.question(task)
    if kind is not None and kind.task == "electra":
        raise InputError("ELECTRA is evaluated after fine-tuning; this model is only pre-trained")
    found = labels_of(task)
    if isinstance(found, labels.Regression):
        raise InputError(
            "a regression predicts no probabilities, which all measures of uncertainty need; "
            "use stochattn-predict, which prints correlations"
        )
    return questions.LabelPredictions(found)
