"""Tasks that fairseq lacks. Importing this package registers everything with fairseq."""

from .. import models  # noqa: F401  (registers archs, criterions and optimizers)
from . import (
    electra,
    node_classification,
    question_answering,
    sentence_prediction_by_length,
    token_tagging,
)

__all__ = [
    "electra",
    "node_classification",
    "question_answering",
    "sentence_prediction_by_length",
    "token_tagging",
]
