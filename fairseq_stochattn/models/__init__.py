"""The archs ``<backbone>_<method>``, and the models that fairseq lacks.

These are ``albert``, ``electra``, ``gat``, ``graph_writer``, ``mcan`` and ``self_attentive``.

fairseq's ``--user-dir`` imports the packages ``tasks`` and ``models``. The one imported first
applies the fixes of ``compat``, ``ddp`` and ``resume`` and registers all archs, tasks, criterions
and optimizers with fairseq.
"""

from .. import compat, ddp, resume

compat.apply()
ddp.apply()
resume.apply()

from .. import criterions, optim, tasks  # noqa: E402, F401
from . import (  # noqa: E402
    albert,
    electra,
    gat,
    graph_writer,
    lstm,
    mcan,
    roberta,
    self_attentive,
    transformer,
    transformer_lm,
)

__all__ = [
    "albert",
    "electra",
    "gat",
    "graph_writer",
    "lstm",
    "mcan",
    "roberta",
    "self_attentive",
    "transformer",
    "transformer_lm",
]
