"""Pruning: a model with some layers of a full model, which loads the full model's checkpoint.

Methods number the layers as in the full model, and have the full model's shared parts. So a setting
or a shared part that belongs to a layer stays with this layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KeptLayers:
    """The layers of a full encoder or decoder that a pruned model has."""

    numbers: tuple[int, ...]  # in the full model, ascending
    total: int  # number of layers of the full model

    @classmethod
    def all(cls, total: int) -> KeptLayers:
        """Every layer: nothing is pruned."""
        return cls(tuple(range(total)), total)


def keep_modules(state: dict[str, Tensor], prefix: str, kept: KeptLayers) -> dict[str, Tensor]:
    """Return ``state`` with only the kept modules of a list, numbered from 0.

    ``prefix`` is the name of the list followed by a dot. If ``state`` does not have the modules of
    the full model, it is not changed: it was pruned before, or it does not fit, which loading
    reports.
    """
    stored = {key: number_after(prefix, key) for key in state if key.startswith(prefix)}
    if set(stored.values()) != set(range(kept.total)):
        return state
    position = {number: str(index) for index, number in enumerate(kept.numbers)}
    pruned = {}
    for key, value in state.items():
        number = stored.get(key)
        if number is None:
            pruned[key] = value
        elif number in position:
            rest = key[len(prefix) + len(str(number)) :]
            pruned[prefix + position[number] + rest] = value
    return pruned


def number_after(prefix: str, key: str) -> int | None:
    """The number that follows the prefix in a parameter's name, or None if none does."""
    number = key[len(prefix) :].split(".")[0]
    return int(number) if number.isdecimal() else None
