"""Averages the parameters of several checkpoints, as is usual for Transformers (Vaswani et al.).

Example: ``python -m fairseq_stochattn.pretrained.average average.pt checkpoint8.pt checkpoint9.pt``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..compat import load_checkpoint
from ..core.errors import InputError
from ..core.files import atomic_file


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Write a checkpoint whose parameters are the means over several, without optimizer state."""
    loaded = [load_checkpoint(str(path)) for path in paths]
    result = {k: v for k, v in loaded[0].items() if k != "last_optimizer_state"}
    for path, state in zip(paths, loaded, strict=True):
        if state["model"].keys() != result["model"].keys():
            raise InputError(f"{path}: its parameters differ from those of {paths[0]}")
    result["model"] = {
        name: torch.stack([state["model"][name].double() for state in loaded]).mean(0).to(tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in loaded[0]["model"].items()
    }
    with atomic_file(output) as partial:
        torch.save(result, partial)


def main(argv: Sequence[str]) -> None:
    """Average the checkpoints ``argv[1:]`` into the file ``argv[0]``."""
    if len(argv) < 2:
        raise SystemExit("usage: average OUTPUT CHECKPOINT …")
    missing = [path for path in argv[1:] if not Path(path).is_file()]
    if missing:
        raise SystemExit(f"{missing[0]} does not exist")
    average_checkpoints([Path(path) for path in argv[1:]], Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
