"""Attention methods in the models of Hugging Face's transformers.

``import fairseq_stochattn`` does not import transformers; ``sa.convert`` uses this package only for
models that contain a ``PreTrainedModel``.
"""
