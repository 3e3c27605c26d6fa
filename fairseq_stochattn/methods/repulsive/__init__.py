"""Repulsive attention (An et al. 2020): the heads of a projection repel each other in training.

particles.py has the rules, systems.py finds the particles in a model, optimizer.py wraps a torch
optimizer.
"""

from .optimizer import Repulsive, RepulsiveSettings

__all__ = ["Repulsive", "RepulsiveSettings"]
