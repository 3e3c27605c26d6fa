"""Criterions that wrap the task's own criterion and add the losses of the attention.

electra, token_tagging, question_answering, node_classification and vqa wrap nothing: they are the
own criterions of the tasks of that name.
"""

from . import (
    alignment,
    asa,
    attendout,
    attention_losses,
    elbo,
    electra,
    freelb,
    head_diversity,
    question_answering,
    smart,
    token_tagging,
)

__all__ = [
    "alignment",
    "asa",
    "attendout",
    "attention_losses",
    "elbo",
    "electra",
    "freelb",
    "head_diversity",
    "question_answering",
    "smart",
    "token_tagging",
]
