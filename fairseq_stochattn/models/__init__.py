"""Backbone × method. Importing this package registers every arch."""

from fairseq_stochattn.models import electra, lstm, roberta, transformer, transformer_lm

__all__ = ["electra", "lstm", "roberta", "transformer", "transformer_lm"]
