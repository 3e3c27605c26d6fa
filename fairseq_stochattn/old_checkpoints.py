"""Checkpoints of earlier versions keep their meaning where a default has changed since."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, MutableMapping
from contextlib import nullcontext
from typing import Any

from omegaconf import DictConfig, open_dict

# Before babn and bam had a prior strength, it was 1, and the noise was the paper's.
BEFORE_PRIOR_STRENGTH = {"prior_strength": 1.0, "noise": "paper"}
# Before LSTMs had additive attention, the preset iwslt_de_en had fairseq's.
OLD_LSTM, NEW_LSTM = "lstm_iwslt_de_en", "lstm_luong_iwslt_de_en"


def keep_old_meaning(state: dict[str, Any]) -> None:
    """Give the model in a checkpoint the settings that it was trained with, where it names none.

    Settings that the checkpoint lacks would otherwise get their present defaults.
    """
    for model in _configurations(state):
        for method in ("babn", "bam"):
            if f"{method}_beta" in model and f"{method}_prior_strength" not in model:
                old = {f"{method}_{name}": value for name, value in BEFORE_PRIOR_STRENGTH.items()}
                _update(model, old)
        for entry in ("_name", "arch"):
            if model.get(entry) == OLD_LSTM:
                _update(model, {entry: NEW_LSTM})
            elif str(model.get(entry)).startswith("lstm_") and "lstm_attention" not in model:
                _update(model, {"lstm_attention": "general"})


def _update(model: MutableMapping, values: dict[str, Any]) -> None:
    with open_dict(model) if isinstance(model, DictConfig) else nullcontext():
        model.update(values)


def _configurations(state: dict[str, Any]) -> Iterator[MutableMapping]:
    """The model's flags in a checkpoint, as fairseq stores them: ``cfg`` (new), ``args`` (old)."""
    for flags in ((state.get("cfg") or {}).get("model"), state.get("args")):
        if flags is not None:
            yield vars(flags) if isinstance(flags, Namespace) else flags
