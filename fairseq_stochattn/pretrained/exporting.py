"""``stochattn-export --to huggingface``: a checkpoint as a folder that transformers loads.

For encoders whose attention is plain at test time, and for plain fairseq's RoBERTa.
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

from fairseq_stochattn import compat
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import arch_of, as_dict, flags_of, weights_of
from fairseq_stochattn.models.backbone import PLAIN_ARCHS
from fairseq_stochattn.pretrained.families import (
    FAMILIES,
    HEAD,
    POOLING_HEAD,
    SEGMENTS,
    TOKENS,
    family_of,
)
from fairseq_stochattn.pretrained.folders import (
    CONFIG,
    WEIGHTS,
    needs_extra,
    read_json,
    refuse_existing,
    whole_folder,
)
from fairseq_stochattn.pretrained.importing import DICTIONARY, FRESH
from fairseq_stochattn.pretrained.settings import config_of
from fairseq_stochattn.pretrained.tensors import to_huggingface
from fairseq_stochattn.pretrained.vocabulary import (
    Vocabulary,
    read_vocabulary,
    tokenizer_files,
    unnamed,
)

logger = logging.getLogger(__name__)


def export_folder(
    checkpoint: Path, out: Path, like: Path | None = None, force: bool = False
) -> None:
    """Write config.json, model.safetensors and the tokenizer of a checkpoint.

    ``like`` is the folder the model was imported to, or any with its tokenizer and config.json; it
    is looked for beside the checkpoint.
    """
    with needs_extra("safetensors"):
        from safetensors.torch import save_file
    refuse_existing(out, force, (CONFIG, WEIGHTS))
    state = compat.load_checkpoint(str(checkpoint))
    backbone = backbone_of(arch_of(state))
    args, weights = model_of(state)
    beside = checkpoint.parent if like is None else like
    files = tokenizer_files(beside)
    if like is not None and not files:
        raise UsageError(f"--like {like}: there is no tokenizer")
    rows = len(weights[TOKENS])
    vocabulary = vocabulary_of(beside, rows) if files else unnamed(rows)
    if not files:
        logger.warning("no tokenizer: rows stay in the dictionary's order (--like FOLDER has one)")
    base = read_json(beside / CONFIG) if (beside / CONFIG).is_file() else {}
    usual = {"roberta": "bert" if SEGMENTS in weights else "roberta"}
    base = {"model_type": usual.get(backbone, backbone), **base}
    family = family_of(base, str(beside / CONFIG))
    if family.backbone != backbone:
        kind = base["model_type"]
        raise UsageError(f"{beside / CONFIG} is that of {kind}, the checkpoint is of {backbone}")
    base["pad_token_id"] = vocabulary.pad
    config = config_of(args, weights, family, base)
    tensors, end = to_huggingface(weights, config, family, vocabulary)
    config["architectures"] = [family.classes[config["model_type"]] + end]
    with whole_folder(out) as folder:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        for file in files:
            shutil.copyfile(file, folder / file.name)


def backbone_of(arch: str) -> str:
    """The one among those of all families that an arch belongs to."""
    for backbone in {family.backbone for family in FAMILIES.values()}:
        if PLAIN_ARCHS.get(arch, arch) in ARCH_MODEL_INV_REGISTRY[backbone]:
            return backbone
    raise UsageError(f"'{arch}' is no encoder that Hugging Face has")


def model_of(state: dict[str, Any]) -> tuple[Namespace, dict[str, Tensor]]:
    """All flags of a checkpoint's model and its weights, but for those nothing was learnt for."""
    arch = arch_of(state)
    given = flags_of(state, arch) if arch in PLAIN_ARCHS else state["cfg"]["model"]
    args = Namespace(**{k: v for k, v in as_dict(given).items() if v is not None})
    ARCH_CONFIG_REGISTRY[arch](args)
    fresh = set(state.get("extra_state", {}).get(FRESH, ()))
    weights = {name: value for name, value in weights_of(state).items() if name not in fresh}
    return args, _with_one_head(weights)


def _with_one_head(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The classification head under the name that the families know, whatever it was called."""
    heads = {
        name.split(".")[1]
        for name in weights
        if name.startswith("classification_heads.") and not name.startswith(POOLING_HEAD)
    }
    if len(heads) > 1:
        raise UsageError(f"several classification heads: {', '.join(sorted(heads))}; one can go")
    for head in heads:
        old, new = f"classification_heads.{head}.", f"classification_heads.{HEAD}."
        weights = {name.replace(old, new): value for name, value in weights.items()}
    return weights


def vocabulary_of(folder: Path, size: int) -> Vocabulary:
    """That of the tokenizer there; a dictionary beside it must be the same."""
    vocabulary = read_vocabulary(folder, size)
    path = folder / DICTIONARY
    if path.is_file():
        dictionary = Dictionary.load(str(path))
        dictionary.add_symbol(vocabulary.symbols[-1])
        if dictionary.symbols != vocabulary.symbols:
            raise UsageError(f"{path} is not the dictionary of the tokenizer beside it")
    return vocabulary
