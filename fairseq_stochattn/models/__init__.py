"""Backbone × method. Importing this package registers every arch."""

from fairseq_stochattn.models import lstm, roberta, transformer, transformer_lm

__all__ = ["lstm", "roberta", "transformer", "transformer_lm"]
