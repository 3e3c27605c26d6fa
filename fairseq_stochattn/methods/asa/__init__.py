"""Adversarial self-attention (Wu et al. 2022): an adversary masks what the model relies on."""

from .attention import ASA, AdversarialSelfAttention

__all__ = ["ASA", "AdversarialSelfAttention"]
