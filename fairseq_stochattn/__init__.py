"""Stochastic and regularised attention for fairseq: ``--user-dir fairseq_stochattn``.

Importing the package registers its methods, archs and criterions, lets checkpoints be loaded
without executing code from them, and mends what current versions broke in fairseq.
"""

from fairseq_stochattn import compat

compat.load_checkpoints_safely()
compat.restore_numpy_alias()

from fairseq_stochattn import attention, criterions, models  # noqa: E402

__version__ = "0.1.0"
__all__ = ["attention", "criterions", "models"]
