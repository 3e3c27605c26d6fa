"""Criterions of ours: each wraps the task's own and adds the losses of the attention."""

from fairseq_stochattn.criterions import alignment, attention_losses, elbo, repulsive

__all__ = ["alignment", "attention_losses", "elbo", "repulsive"]
