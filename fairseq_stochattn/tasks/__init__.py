"""Tasks that fairseq lacks. Importing this package registers them."""

from fairseq_stochattn.tasks import by_length, electra, tagging

__all__ = ["by_length", "electra", "tagging"]
