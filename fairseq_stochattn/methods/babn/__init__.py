"""Bayesian attention belief networks (Zhang et al. 2021).

attention.py implements the method in one layer, upward.py computes the hidden states of all layers
in a stack, inference.py computes the Weibull posterior, prior.py the gamma prior, and meter.py how
random the sampled weights are.
"""

from .attention import BABN, BABNAttention

__all__ = ["BABN", "BABNAttention"]
