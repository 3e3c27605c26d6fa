"""Alignment attention (Zhang et al. 2021).

attention.py implements the method, and distances.py the three distances between keys and queries
(§2.3). networks.py has the trainable networks of these distances, and gan_loss.py and transport.py
their formulas. tokens.py selects the non-padding tokens of a batch.
"""

from .attention import Alignment, AlignmentAttention

__all__ = ["Alignment", "AlignmentAttention"]
