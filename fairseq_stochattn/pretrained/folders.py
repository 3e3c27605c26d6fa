"""A model's folder in Hugging Face's layout: its settings and tensors; and folders made whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_stochattn import compat
from fairseq_stochattn.errors import UsageError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


@contextmanager
def needs_extra(package: str) -> Iterator[None]:
    """Around the import of what only pretrained models need."""
    try:
        yield
    except ImportError:
        raise UsageError(
            f"{package} is not installed: pip install 'fairseq_stochattn[pretrained]'"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no JSON object")
    return content


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights: safetensors before pytorch_model.bin, one file or the shards of an index."""
    for name, read in ((WEIGHTS, _read_safetensors), ("pytorch_model.bin", _read_pickle)):
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index, read)
    raise UsageError(f"{folder} has no weights: neither {WEIGHTS} nor pytorch_model.bin")


def _read_shards(index: Path, read: Any) -> dict[str, Tensor]:
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise UsageError(f"{index} has no weight_map")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(listed.values())):
        if Path(name).name != name or not (index.parent / name).is_file():
            raise UsageError(f"{index} names {name}, which is not beside it")
        tensors |= read(index.parent / name)
    lost = sorted(set(listed) - set(tensors))
    if lost:
        raise UsageError(f"{index} lists {lost[0]}, but {listed[lost[0]]} does not have it")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with needs_extra("safetensors"):
        import safetensors
        from safetensors.torch import load_file
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    content = compat.load_checkpoint(str(path))
    if not (isinstance(content, dict) and all(isinstance(x, Tensor) for x in content.values())):
        raise UsageError(f"{path} holds more than tensors")
    return content


def refuse_existing(out: Path, force: bool, marks: Sequence[str]) -> None:
    """An output that exists needs ``force``, which replaces only what holds the files ``marks``."""
    if not out.exists():
        return
    if not force:
        raise UsageError(f"{out} exists already (--force makes it anew)")
    if not all((out / name).is_file() for name in marks):
        raise UsageError(f"{out} holds something else: name a new folder")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``out`` when all is done and vanishes else."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
