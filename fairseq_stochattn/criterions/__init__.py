"""Criterions of ours: each wraps the task's own and adds the losses that the attention left.

``tagging`` is such a task's own, which fairseq lacks.
"""

from fairseq_stochattn.criterions import alignment, attention_losses, elbo, tagging

__all__ = ["alignment", "attention_losses", "elbo", "tagging"]
