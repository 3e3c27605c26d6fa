"""Reads config.json and the weights from a model folder in Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import compat
from ..core import json_input
from ..core.errors import InputError
from ..core.optional import optional_import

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file."""
    content = json_input.read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} does not contain a JSON object")
    return content


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all weights in a folder, by name, from one file or from the shards in an index.

    safetensors files are preferred over pytorch_model.bin.
    """
    for name, read in ((WEIGHTS, _read_safetensors), (PICKLED_WEIGHTS, _read_pickle)):
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index, read)
    raise InputError(f"{folder} has no weights: neither {WEIGHTS} nor {PICKLED_WEIGHTS}")


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise InputError(f"{index} has no weight_map")
    if not all(isinstance(shard, str) for shard in shard_of.values()):
        raise InputError(f"{index}: a value of weight_map is not the name of a file")
    tensors: dict[str, Tensor] = {}
    files = {path.name for path in index.parent.iterdir() if path.is_file()}
    for shard in sorted(set(shard_of.values())):
        if shard not in files:
            raise InputError(
                f"{index} lists {json_input.short(shard)}, which is not in the same folder"
            )
        tensors |= read(index.parent / shard)
    missing = sorted(set(shard_of) - set(tensors))
    if missing:
        name = missing[0]
        raise InputError(
            f"{index} lists the tensor {json_input.short(name)}, but {shard_of[name]} lacks it"
        )
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = optional_import("safetensors", "reading safetensors", "pretrained")
    load_file = optional_import("safetensors.torch", "reading safetensors", "pretrained").load_file
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    content = compat.load_checkpoint(str(path))
    if not (isinstance(content, dict) and all(isinstance(x, Tensor) for x in content.values())):
        raise InputError(f"{path} contains something other than tensors")
    if not all(isinstance(name, str) for name in content):
        raise InputError(f"{path} contains a tensor whose name is not a text")
    return content


def refuse_existing(out: Path, force: bool, expected: Sequence[str]) -> None:
    """Raise if ``out`` exists, unless ``force`` is set and ``out`` has the ``expected`` files.

    The expected files show that ``out`` is an earlier output, so that ``force`` never deletes
    another folder by mistake.
    """
    if not out.exists():
        return
    if not force:
        raise InputError(f"{out} exists already (--force overwrites it)")
    missing = [name for name in expected if not (out / name).is_file()]
    if missing:
        raise InputError(
            f"{out} is not overwritten, because it is not an earlier output (it has no "
            f"{' and no '.join(missing)}): choose a new folder"
        )
