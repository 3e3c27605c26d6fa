"""Export of a checkpoint to a Hugging Face folder, which transformers can load.

An encoder can be exported if it computes plain attention, softmax(QKᵀ/√d)V, at test time. Plain
fairseq's RoBERTa can be exported too.
"""

from __future__ import annotations

import json
import logging
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY
from torch import Tensor

from .. import compat
from ..core.errors import InputError
from ..core.files import atomic_folder
from ..core.optional import optional_import
from ..models.backbone import PLAIN_ARCHS
from .export_fairseq import as_dict, checkpoint_arch, fairseq_weights, plain_model_flags
from .families import FAMILIES, HEAD, POOLING_HEAD, SEGMENTS, TOKENS, family_of
from .huggingface_folder import CONFIG, WEIGHTS, read_json, refuse_existing
from .import_huggingface import DICTIONARY, NOT_IMPORTED
from .settings import config_from_flags
from .tensors import to_huggingface
from .vocabulary import (
    Vocabulary,
    read_vocabulary,
    tokenizer_files,
    vocabulary_without_tokenizer,
)

logger = logging.getLogger(__name__)


def export_folder(
    checkpoint: Path, out: Path, like: Path | None = None, force: bool = False
) -> None:
    """Write config.json, model.safetensors and the tokenizer of a checkpoint to the folder ``out``.

    ``like`` is the folder that the model was imported to, or another folder with its tokenizer and
    config.json. The default is the folder of the checkpoint.
    """
    purpose = "writing a Hugging Face folder"
    save_file = optional_import("safetensors.torch", purpose, "pretrained").save_file
    refuse_existing(out, force, (CONFIG, WEIGHTS))
    state = compat.load_checkpoint(str(checkpoint))
    compat.require_weights(checkpoint, state)
    backbone = encoder_backbone(checkpoint_arch(state))
    args, weights = model_flags_and_weights(state)
    folder = checkpoint.parent if like is None else like
    files = tokenizer_files(folder)
    if like is not None and not files:
        raise InputError(f"--like {like}: the folder has no tokenizer")
    rows = len(weights[TOKENS])
    if files:
        vocabulary = checked_vocabulary(folder, rows)
    else:
        vocabulary = vocabulary_without_tokenizer(rows)
        logger.warning(
            "no tokenizer found: embedding rows keep the order of the fairseq dictionary "
            "(--like FOLDER names a folder with a tokenizer)"
        )
    base = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    base = {"model_type": default_model_type(backbone, weights), **base}
    family = family_of(base, str(folder / CONFIG))
    if family.backbone != backbone:
        raise InputError(
            f"{folder / CONFIG} describes a model of type {base['model_type']}, but the "
            f"checkpoint is of type {backbone}"
        )
    base["pad_token_id"] = vocabulary.padding_id
    config = config_from_flags(args, weights, family, base)
    tensors, class_suffix = to_huggingface(weights, config, family, vocabulary)
    config["architectures"] = [family.class_prefixes[config["model_type"]] + class_suffix]
    with atomic_folder(out) as partial:
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
        (partial / CONFIG).write_text(text + "\n", encoding="utf-8")
        for file in files:
            shutil.copyfile(file, partial / file.name)


def encoder_backbone(arch: str) -> str:
    """The backbone of an arch. Raises if no family of encoders has this backbone."""
    for backbone in {family.backbone for family in FAMILIES.values()}:
        if PLAIN_ARCHS.get(arch, arch) in ARCH_MODEL_INV_REGISTRY[backbone]:
            return backbone
    raise InputError(f"the arch '{arch}' cannot be exported to Hugging Face: it has no counterpart")


def default_model_type(backbone: str, weights: dict[str, Tensor]) -> str:
    """The model_type of a checkpoint without config.json: a RoBERTa with segments is a BERT."""
    return "bert" if backbone == "roberta" and SEGMENTS in weights else backbone


def model_flags_and_weights(state: dict[str, Any]) -> tuple[Namespace, dict[str, Tensor]]:
    """All model flags of a checkpoint, and its weights.

    Parameters that were missing at the import are left out unless training has changed them.
    """
    arch = checkpoint_arch(state)
    given = plain_model_flags(state, arch) if arch in PLAIN_ARCHS else state["cfg"]["model"]
    args = Namespace(**{k: v for k, v in as_dict(given).items() if v is not None})
    ARCH_CONFIG_REGISTRY[arch](args)
    not_imported = set(state.get("extra_state", {}).get(NOT_IMPORTED, ()))
    weights = {k: v for k, v in fairseq_weights(state).items() if k not in not_imported}
    return args, _rename_head(weights)


def _rename_head(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the classification head to ``HEAD``, the name that the families use."""
    heads = {
        name.split(".")[1]
        for name in weights
        if name.startswith("classification_heads.") and not name.startswith(POOLING_HEAD)
    }
    if len(heads) > 1:
        raise InputError(
            f"the checkpoint has several classification heads ({', '.join(sorted(heads))}), but "
            "only one can be exported"
        )
    for head in heads:
        old, new = f"classification_heads.{head}.", f"classification_heads.{HEAD}."
        weights = {name.replace(old, new): value for name, value in weights.items()}
    return weights


def checked_vocabulary(folder: Path, size: int) -> Vocabulary:
    """The vocabulary of the tokenizer in ``folder``. Raises if ``folder``/dict.txt differs."""
    vocabulary = read_vocabulary(folder, size)
    path = folder / DICTIONARY
    if path.is_file():
        dictionary = Dictionary.load(str(path))
        dictionary.add_symbol(vocabulary.symbols[-1])
        if dictionary.symbols != vocabulary.symbols:
            raise InputError(f"{path} is not the dictionary of the tokenizer in the same folder")
    return vocabulary
