"""Stochastic and regularised attention for fairseq: ``--user-dir fairseq_stochattn``.

Importing the package registers its methods, archs, tasks, criterions and optimizers, lets
checkpoints be loaded without executing code from them, and mends what current versions broke in
fairseq.
"""

import logging

# On import fairseq's speech task advises to install a package that nothing here uses.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

from fairseq_stochattn import compat  # noqa: E402

compat.load_checkpoints_safely()
compat.restore_numpy_alias()
compat.keep_last_batch()
compat.mend_sentence_ranking()
compat.show_optimizers_the_model()
compat.show_criterions_the_model()

from fairseq_stochattn import attention, criterions, models, optim, tasks  # noqa: E402

__version__ = "0.1.0"
__all__ = ["attention", "criterions", "models", "optim", "tasks"]
