"""Tasks that fairseq lacks. Importing this package registers them."""

from fairseq_stochattn.tasks import electra, tagging

__all__ = ["electra", "tagging"]
