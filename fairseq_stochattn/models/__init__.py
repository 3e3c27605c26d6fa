"""Backbone × method, and models of our own. Importing this package registers every arch."""

from fairseq_stochattn.models import (
    electra,
    lstm,
    roberta,
    self_attentive,
    transformer,
    transformer_lm,
)

__all__ = ["electra", "lstm", "roberta", "self_attentive", "transformer", "transformer_lm"]
