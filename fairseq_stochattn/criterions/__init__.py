"""Criterions of ours: each wraps the task's own and adds the losses that the attention left."""

from fairseq_stochattn.criterions import alignment, attention_losses, elbo

__all__ = ["alignment", "attention_losses", "elbo"]
