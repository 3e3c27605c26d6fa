"""Criterions of ours: each wraps the task's own and adds the losses that the attention left.

The exception is electra, which is such a task's own.
"""

from fairseq_stochattn.criterions import alignment, attention_losses, elbo, electra

__all__ = ["alignment", "attention_losses", "elbo", "electra"]
