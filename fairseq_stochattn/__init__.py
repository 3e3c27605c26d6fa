"""Stochastic and regularised attention for sequence models.

    import fairseq_stochattn as sa
    sa.convert(model, sa.BABN())                # torch models
    fairseq-train … --user-dir fairseq_stochattn --arch transformer_babn

Importing the package loads neither torch nor fairseq. ``--user-dir`` imports ``models`` and
``tasks``, which register everything with fairseq; ``import fairseq_stochattn.models`` does too.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

# On import, fairseq's speech task advises to install a package that nothing here uses.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

__version__ = "0.2.0"


class _UserDir(list):
    """The package's ``__path__``; registers everything when fairseq asks for ``--user-dir``.

    fairseq imports ``models`` and ``tasks`` of a user directory, but not if the package is already
    imported. Then it only checks ``directory in package.__path__``.
    """

    def __contains__(self, directory: object) -> bool:
        if not super().__contains__(directory):
            return False
        import_module(f"{__name__}.models")
        return True


__path__ = _UserDir(__path__)

# Public name → the module that defines it; imported on first use.
_PUBLIC = {
    "convert": "integrations.convert",
    "revert": "integrations.convert",
    "collect_losses": "integrations.training",
    "paired_forward": "integrations.training",
    "divergence": "integrations.training",
    "save_pretrained": "integrations.huggingface.folder",
    "load_pretrained": "integrations.huggingface.folder",
    "generate": "integrations.huggingface.generation",
    "TrainerMixin": "integrations.huggingface.trainer",
    "sample": "uncertainty.sampling",
    "sampled_attention": "uncertainty.sampling",
    "Draws": "uncertainty.sampling",
    "Repulsive": "methods.repulsive",
    "Deterministic": "methods.deterministic",
    "BABN": "methods.babn",
    "BAM": "methods.bam",
    "Alignment": "methods.alignment",
    "ASA": "methods.asa",
    "Bernoulli": "methods.bernoulli",
    "Scheduled": "methods.scheduled",
    "Magnitude": "methods.magnitude",
    "AttendOut": "methods.attendout",
    "CellDropout": "methods.cell_dropout",
    "LayerDrop": "methods.layerdrop",
}
__all__ = [*_PUBLIC, "uncertainty"]


def __getattr__(name: str) -> Any:
    if name == "uncertainty":  # a package that is also a function
        return import_module(f"{__name__}.uncertainty")
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
