"""Criterions of ours: each wraps the task's own and adds the losses of the attention.

The exceptions are electra and tagging, which are such tasks' own.
"""

from fairseq_stochattn.criterions import (
    alignment,
    asa,
    attendout,
    attention_losses,
    elbo,
    electra,
    freelb,
    repulsive,
    smart,
    tagging,
)

__all__ = [
    "alignment",
    "asa",
    "attendout",
    "attention_losses",
    "elbo",
    "electra",
    "freelb",
    "repulsive",
    "smart",
    "tagging",
]
