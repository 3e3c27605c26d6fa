"""Samples the predictions of a model and measures its uncertainty and calibration.

The package is callable, because the public function ``sa.uncertainty`` has the same name:
``sa.uncertainty(probabilities)`` calls ``measures.uncertainty``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from .measures import Uncertainty


class _CallablePackage(ModuleType):
    def __call__(self, probabilities: Tensor) -> Uncertainty:
        """Decompose the uncertainty of K sampled predictions (K, …, classes)."""
        from .measures import uncertainty

        return uncertainty(probabilities)


sys.modules[__name__].__class__ = _CallablePackage
