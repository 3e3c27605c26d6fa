"""Stochastic and regularised attention for fairseq: ``--user-dir fairseq_stochattn``.

Importing the package registers its methods, archs and criterions, and lets checkpoints be loaded
without executing code from them.
"""

from fairseq_stochattn import compat

compat.load_checkpoints_safely()

from fairseq_stochattn import attention, criterions, models  # noqa: E402

__version__ = "0.1.0"
__all__ = ["attention", "criterions", "models"]
