"""Tasks that fairseq lacks. Importing this package registers everything with fairseq."""

from .. import models  # noqa: F401  (registers archs, criterions and optimizers)
from . import (
    electra,
    graph_to_text,
    node_classification,
    question_answering,
    sentence_prediction_by_length,
    token_tagging,
    vqa,
)

__all__ = [
    "electra",
    "graph_to_text",
    "node_classification",
    "question_answering",
    "sentence_prediction_by_length",
    "token_tagging",
    "vqa",
]
