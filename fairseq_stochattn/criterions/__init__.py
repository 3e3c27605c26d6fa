"""Criterions of ours: each wraps the task's own and adds the losses of the attention.

``tagging`` is such a task's own, which fairseq lacks.
"""

from fairseq_stochattn.criterions import alignment, attention_losses, elbo, repulsive, tagging

__all__ = ["alignment", "attention_losses", "elbo", "repulsive", "tagging"]
