"""Saves converted models of transformers to a folder, and loads them. No file is a pickle.

The folder has the model's own files, which transformers reads as a plain model, and
``stochattn.json`` (methods and settings) and ``stochattn.safetensors`` (parameters of the methods).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError
from ...core.files import atomic_folder
from ...core.json_input import read_json, short
from ...core.method import METHODS
from ...core.optional import optional_import
from ...core.settings import Settings
from ..convert import convert
from .conversion import Choice, without_warnings
from .layers import ADDED

METHODS_FILE, WEIGHTS_FILE = "stochattn.json", "stochattn.safetensors"
FORMAT = 1


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write a converted model to ``folder``, which is replaced if it exists.

    ``load_pretrained`` reads it. transformers' ``from_pretrained`` reads it as a plain model.
    """
    choice: Choice | None = getattr(model, "_stochattn_choice", None)
    if choice is None or not hasattr(model, "save_pretrained"):
        raise InputError("save_pretrained needs a model of transformers that sa.convert converted")
    safetensors = optional_import("safetensors.torch", "sa.save_pretrained", "huggingface")
    own, plain = {}, {}
    for name, tensor in model.state_dict().items():
        (own if _is_own(name) else plain)[name] = tensor
    content = {
        "format": FORMAT,
        "methods": [{"method": name, "settings": asdict(x)} for name, x in choice.chain.items()],
        "sites": choice.sites if isinstance(choice.sites, str) else list(choice.sites),
        "layers": choice.layers if isinstance(choice.layers, str) else list(choice.layers),
    }
    with atomic_folder(Path(folder)) as partial:
        model.save_pretrained(partial, state_dict=plain)
        tensors = {name: tensor.detach().clone().contiguous() for name, tensor in own.items()}
        safetensors.save_file(tensors, partial / WEIGHTS_FILE)
        (partial / METHODS_FILE).write_text(json.dumps(content, indent=1) + "\n")


def load_pretrained(folder: str | Path) -> nn.Module:
    """The converted model that ``save_pretrained`` wrote to ``folder``, in eval mode."""
    folder = Path(folder)
    if not (folder / METHODS_FILE).is_file():
        raise InputError(f"{folder} has no {METHODS_FILE}: sa.save_pretrained did not write it")
    choice = _read_choice(folder / METHODS_FILE)
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    model = _read_plain(folder)
    convert(model, list(choice.chain.values()), choice.sites, choice.layers)
    expected = {name: x for name, x in model.state_dict().items() if _is_own(name)}
    for name in sorted(expected.keys() ^ tensors.keys()):
        problem = "lacks" if name in expected else "has an unknown tensor"
        raise InputError(f"{folder / WEIGHTS_FILE} {problem} {short(name, 120)}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise InputError(f"{folder / WEIGHTS_FILE}: {name} has the shape {list(tensor.shape)}")
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def _is_own(name: str) -> bool:
    return ADDED in name.split(".")


def _read_choice(path: Path) -> Choice:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is damaged or of a later version: its format is not {FORMAT}")
    methods, sites, layers = (content.get(name) for name in ("methods", "sites", "layers"))
    if not isinstance(methods, list) or not methods:
        raise InputError(f"{path} is damaged: it names no methods")
    chain: dict[str, Settings] = {}
    for entry in methods:
        name = entry.get("method") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in METHODS:
            raise InputError(f"{path} names the method {short(name)}, which does not exist")
        chain[name] = _settings(METHODS[name].Settings, entry.get("settings"), path)
    if not all(isinstance(spec, (str, list)) for spec in (sites, layers)):
        raise InputError(f"{path} is damaged: sites and layers must be strings or lists")
    return Choice(chain, sites, layers)


def _settings(kind: type[Settings], values: Any, path: Path) -> Settings:
    if not isinstance(values, dict):
        raise InputError(f"{path} is damaged: {kind.__name__} has no settings")
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except TypeError as error:
        raise InputError(f"{path}: {kind.__name__}: {short(str(error), 120)}") from None


def _read_tensors(path: Path) -> dict[str, Tensor]:
    safetensors = optional_import("safetensors.torch", "sa.load_pretrained", "huggingface")
    try:
        return safetensors.load_file(path)
    except Exception as error:
        # safetensors has an exception class for damaged files that it does not document.
        raise InputError(f"{path} cannot be read: {short(str(error), 120)}") from None


def _read_plain(folder: Path) -> nn.Module:
    """The plain model in the folder; the class is the one that its config.json names."""
    transformers = optional_import("transformers", "sa.load_pretrained", "huggingface")
    config = read_json(folder / "config.json")
    names = config.get("architectures") if isinstance(config, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    model_class = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (
        isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
    ):
        raise InputError(f"{folder}: transformers has no model class {short(name)}")
    try:
        with without_warnings():
            model, info = model_class.from_pretrained(
                folder, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except Exception as error:
        # transformers raises many kinds of errors for damaged files.
        raise InputError(f"{folder} cannot be loaded: {short(str(error), 160)}") from None
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(problem):
            first = sorted(map(str, info[problem]))[0]
            raise InputError(f"{folder}: the weights have {problem.replace('_', ' ')}: {first}")
    return model
