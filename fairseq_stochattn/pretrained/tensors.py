"""Converts an encoder's tensors between Hugging Face's and fairseq's names and row orders."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .families import (
    BUFFERS,
    FIRST_POSITION,
    OUTPUT,
    OUTPUT_BIAS,
    POOLING_HEAD,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    Family,
    Part,
)
from .shapes import check_shapes
from .vocabulary import Vocabulary

logger = logging.getLogger(__name__)

ONE_ROW_PER_TOKEN = {TOKENS, OUTPUT, OUTPUT_BIAS}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Suffixes of LayerNorm parameters in the first release of BERT → current suffixes.
OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}


def to_fairseq(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    family: Family,
    vocabulary: Vocabulary,
    where: str,
) -> dict[str, Tensor]:
    """Convert Hugging Face's ``tensors`` to fairseq's names and row order, in fp32.

    ``config`` is the content of config.json, and error messages name the folder ``where``.
    """
    weights = _rename_to_fairseq(tensors, config, family, where)
    check_shapes(weights, config, family, where)
    for name in ONE_ROW_PER_TOKEN & set(weights):
        rows, size = len(weights[name]), config["vocab_size"]
        if rows != size:
            raise InputError(f"{where}: the embedding has {rows} rows, but vocab_size is {size}")
        weights[name] = vocabulary.to_fairseq(weights[name])
    first = family.first_position(config)
    weights[POSITIONS] = shift_rows(weights[POSITIONS], FIRST_POSITION - first)
    if not weights[SEGMENTS].any():
        del weights[SEGMENTS]  # RoBERTa has no segments, but transformers stores zeros for them
    weights = {name: value.float() for name, value in weights.items()}
    if family.predicts_tokens and config.get("tie_word_embeddings", True):
        weights[OUTPUT] = weights[TOKENS]
    pooler = weights.get(f"{POOLING_HEAD}dense.weight")
    if pooler is not None:
        # The pooler is stored as one of fairseq's classification heads, which must have an output
        # layer. This output layer has 0 classes.
        weights[f"{POOLING_HEAD}out_proj.weight"] = pooler.new_zeros(0, len(pooler))
        weights[f"{POOLING_HEAD}out_proj.bias"] = pooler.new_zeros(0)
    return weights


def _rename_to_fairseq(
    tensors: dict[str, Tensor], config: dict[str, Any], family: Family, where: str
) -> dict[str, Tensor]:
    """Rename tensors from Hugging Face's names to fairseq's; a tied output weight is left out.

    Raises if a tensor is missing, or if fairseq has no counterpart for a tensor.
    """
    tied = config.get("tie_word_embeddings", True)
    remaining = {_normalise_name(name, family): value for name, value in tensors.items()}
    for prefix, reason in family.refused.items():
        if any(name.startswith(prefix) for name in remaining):
            raise InputError(f"{where} contains {reason}")
    weights: dict[str, Tensor] = {}
    for part in family.parts:
        if not part.applies(config) or (part.marker and part.marker not in remaining):
            continue
        if part.output_layer:
            _remove_duplicate_output(part, remaining, tied)
        names = part.expand(config["num_hidden_layers"], tied)
        missing = [name for name in names if name not in remaining]
        if missing:
            raise InputError(f"{where} lacks the tensor {first_of(missing)}")
        weights |= {fairseq: remaining.pop(hf) for hf, fairseq in names.items()}
    unknown = [name for name in remaining if not name.startswith(family.skipped)]
    if unknown:
        raise InputError(
            f"{where} has a tensor without a counterpart in fairseq: {first_of(unknown)}"
        )
    skipped = [name for name in remaining if not name.startswith(BUFFERS)]
    if skipped:
        logger.info(
            "skipping %s: it belongs to a head that fairseq does not have", first_of(skipped)
        )
    if not all(_is_plain(value) for value in weights.values()):
        raise InputError(f"{where} contains quantised weights, which cannot be imported")
    for name, value in weights.items():
        if not value.isfinite().all():
            raise InputError(f"{where}: the tensor {name} contains NaN or infinite numbers")
    return weights


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds ordinary numbers in memory: not quantised, sparse or without data."""
    return tensor.dtype in FLOATS and tensor.layout is torch.strided and not tensor.is_meta


def _remove_duplicate_output(part: Part, tensors: dict[str, Tensor], tied: bool) -> None:
    """Remove a second copy of the output layer's weight and bias, in place.

    A tied weight may be stored both in the embedding and in the output layer, and the bias both in
    the head and in the output layer. transformers uses the bias of the output layer, so this copy
    of the bias is kept.
    """
    if tied:
        tensors.pop(f"{part.output_layer}.weight", None)
    if f"{part.output_layer}.bias" in tensors:
        tensors[part.output_bias] = tensors.pop(f"{part.output_layer}.bias")


def to_huggingface(
    weights: dict[str, Tensor], config: dict[str, Any], family: Family, vocabulary: Vocabulary
) -> tuple[dict[str, Tensor], str]:
    """Convert fairseq's ``weights`` to Hugging Face's names and row order.

    Also returns the suffix of the transformers class for this model, such as ``ForMaskedLM``.
    """
    tied = config["tie_word_embeddings"]
    remaining = {
        name: value
        for name, value in weights.items()
        if not (name.startswith(f"{POOLING_HEAD}out_proj") or name.endswith(".version"))
        and not (tied and name == OUTPUT)
    }
    for name in ONE_ROW_PER_TOKEN & set(remaining):
        remaining[name] = vocabulary.to_tokenizer(remaining[name])
    first = family.first_position(config)
    remaining[POSITIONS] = shift_rows(remaining[POSITIONS], first - FIRST_POSITION)
    if SEGMENTS not in remaining:
        tokens = remaining[TOKENS]
        remaining[SEGMENTS] = tokens.new_zeros(config["type_vocab_size"], tokens.size(1))
    tensors: dict[str, Tensor] = {}
    class_suffix = ""
    for part in family.parts:
        names = part.expand(config["num_hidden_layers"], tied)
        if not part.applies(config) or (part.marker and names[part.marker] not in remaining):
            continue
        missing = [name for name in names.values() if name not in remaining]
        if missing:
            raise InputError(f"the checkpoint lacks the tensor {first_of(missing)}")
        found = {hf: remaining.pop(fairseq) for hf, fairseq in names.items()}
        if part.class_suffix and class_suffix:
            logger.info(
                "skipping the head of %s: the model is exported as %s, which has no such head",
                part.class_suffix,
                class_suffix,
            )
            continue
        if part.output_layer and not tied:
            # If the weight is not tied, transformers stores the bias both in the head and in the
            # output layer.
            found[f"{part.output_layer}.bias"] = found[part.output_bias]
        tensors |= found
        class_suffix = class_suffix or part.class_suffix
    unknown = [name for name in remaining if not name.startswith(family.pretraining_only)]
    if unknown:
        raise InputError(
            f"{config['model_type']} has no counterpart for the tensor {first_of(unknown)}"
        )
    if remaining:
        logger.info("skipping %s: only pre-training needs it", first_of(remaining))
    has_head = bool(class_suffix)
    # Tensors are cloned because safetensors does not save tensors that share memory.
    named = {_full_name(n, family, has_head): value.clone() for n, value in tensors.items()}
    return named, class_suffix or "Model"


def _normalise_name(name: str, family: Family) -> str:
    """Remove the encoder's prefix from a Hugging Face name, and replace outdated suffixes."""
    name = name.removeprefix(family.encoder_prefix)
    for old, new in OLD_SUFFIXES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _full_name(name: str, family: Family, has_head: bool) -> str:
    """Add the encoder's prefix to the name of an encoder's tensor if the model has a head."""
    in_encoder = name.startswith(("embeddings", "encoder.", "pooler."))
    return family.encoder_prefix + name if has_head and in_encoder else name


def shift_rows(rows: Tensor, by: int) -> Tensor:
    """Insert ``by`` rows of zeros at the front; a negative ``by`` removes rows from the front."""
    return rows[-by:] if by < 0 else torch.cat([rows.new_zeros(by, rows.size(1)), rows])


def first_of(names: Iterable[str]) -> str:
    """The first name, followed by the number of further names."""
    first, *more = names
    return f"{first} (and {len(more)} more)" if more else first
