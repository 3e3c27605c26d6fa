"""Repulsive attention (An et al. 2020): the heads of a projection repel each other in training.

directions.py has the default rule, particles.py those of the paper; systems.py finds the particles
in a model, optimizer.py wraps a torch optimizer, meter.py measures how different the heads are.
"""

from .optimizer import Repulsive
from .settings import RepulsiveSettings

__all__ = ["Repulsive", "RepulsiveSettings"]
