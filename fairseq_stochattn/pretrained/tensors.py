"""The tensors of an encoder under Hugging Face's names and numbers ↔ under fairseq's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.pretrained.families import (
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
from fairseq_stochattn.pretrained.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

VOCABULARY = {TOKENS, OUTPUT, OUTPUT_BIAS}  # their rows are tokens
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # of BERT's first release


def to_fairseq(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    family: Family,
    vocabulary: Vocabulary,
    where: str,
) -> dict[str, Tensor]:
    """Named and ordered as fairseq does, in fp32."""
    weights = _renamed(tensors, config, family, where)
    for name in VOCABULARY & set(weights):
        rows, size = len(weights[name]), config["vocab_size"]
        if rows != size:
            raise UsageError(f"{where}: an embedding of {rows} rows, but vocab_size {size}")
        weights[name] = vocabulary.to_fairseq(weights[name])
    first = family.first_position(config)
    weights[POSITIONS] = shift_rows(weights[POSITIONS], FIRST_POSITION - first)
    if not weights[SEGMENTS].any():
        del weights[SEGMENTS]  # those of RoBERTa, which it has for the sake of the interface
    weights = {name: value.float() for name, value in weights.items()}
    if family.writes_tokens and config.get("tie_word_embeddings", True):
        weights[OUTPUT] = weights[TOKENS]
    pooler = weights.get(f"{POOLING_HEAD}dense.weight")
    if pooler is not None:  # a head has classes, if only none
        weights[f"{POOLING_HEAD}out_proj.weight"] = pooler.new_zeros(0, len(pooler))
        weights[f"{POOLING_HEAD}out_proj.bias"] = pooler.new_zeros(0)
    return weights


def _renamed(
    tensors: dict[str, Tensor], config: dict[str, Any], family: Family, where: str
) -> dict[str, Tensor]:
    """All tensors that fairseq has a place for; the embedding alone where it is the output too."""
    tied = config.get("tie_word_embeddings", True)
    rest = {_plain_name(name, family): value for name, value in tensors.items()}
    for start, reason in family.refused.items():
        if any(name.startswith(start) for name in rest):
            raise UsageError(f"{where} holds {reason}")
    weights: dict[str, Tensor] = {}
    for part in family.parts:
        if not part.wanted(config) or (part.mark and part.mark not in rest):
            continue
        if part.output:
            _take_one_output(part, rest, tied)
        names = part.expand(config["num_hidden_layers"], tied)
        missing = [name for name in names if name not in rest]
        if missing:
            raise UsageError(f"{where} lacks the tensor {listed(missing)}")
        weights |= {ours: rest.pop(theirs) for theirs, ours in names.items()}
    foreign = [name for name in rest if not name.startswith(family.without)]
    if foreign:
        raise UsageError(f"{where} has a tensor that fairseq has no place for: {listed(foreign)}")
    dropped = [name for name in rest if not name.startswith(BUFFERS)]
    if dropped:
        logger.info("left out, since fairseq has no such head: %s", listed(dropped))
    if not all(value.is_floating_point() for value in weights.values()):
        raise UsageError(f"{where} holds quantised weights")
    return weights


def _take_one_output(part: Part, rest: dict[str, Tensor], tied: bool) -> None:
    """A tied weight may be stored twice. So may the bias, and the output's own is what counts."""
    if tied:
        rest.pop(f"{part.output}.weight", None)
    if f"{part.output}.bias" in rest:
        rest[part.output_bias] = rest.pop(f"{part.output}.bias")


def to_huggingface(
    weights: dict[str, Tensor], config: dict[str, Any], family: Family, vocabulary: Vocabulary
) -> tuple[dict[str, Tensor], str]:
    """Named and ordered as transformers does; and how the name of a class for them ends."""
    tied = config["tie_word_embeddings"]
    rest = {
        name: value
        for name, value in weights.items()
        if not (name.startswith(f"{POOLING_HEAD}out_proj") or name.endswith(".version"))
        and not (tied and name == OUTPUT)
    }
    for name in VOCABULARY & set(rest):
        rest[name] = vocabulary.to_tokenizer(rest[name])
    first = family.first_position(config)
    rest[POSITIONS] = shift_rows(rest[POSITIONS], first - FIRST_POSITION)
    if SEGMENTS not in rest:
        rest[SEGMENTS] = rest[TOKENS].new_zeros(config["type_vocab_size"], rest[TOKENS].size(1))
    tensors: dict[str, Tensor] = {}
    end = ""
    for part in family.parts:
        names = part.expand(config["num_hidden_layers"], tied)
        if not part.wanted(config) or (part.mark and names[part.mark] not in rest):
            continue
        missing = [name for name in names.values() if name not in rest]
        if missing:
            raise UsageError(f"the checkpoint lacks the tensor {listed(missing)}")
        found = {theirs: rest.pop(ours) for theirs, ours in names.items()}
        if part.head and end:
            logger.info("left out: the weights %s, which models %s lack", part.head, end)
            continue
        if part.output and not tied:
            found[f"{part.output}.bias"] = found[part.output_bias]
        tensors |= found
        end = end or part.head
    foreign = [name for name in rest if not name.startswith(family.pretraining)]
    if foreign:
        raise UsageError(f"{config['model_type']} has no place for the tensor {listed(foreign)}")
    if rest:
        logger.info("left out, since it belongs to pre-training: %s", listed(rest))
    # Copies, since safetensors refuses tensors that share their memory.
    return {_full_name(n, family, end): v.clone() for n, v in tensors.items()}, end or "Model"


def _plain_name(name: str, family: Family) -> str:
    name = name.removeprefix(family.prefix)
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _full_name(name: str, family: Family, end: str) -> str:
    inside = name.startswith(("embeddings", "encoder.", "pooler."))
    return family.prefix + name if end and inside else name


def shift_rows(rows: Tensor, by: int) -> Tensor:
    """So many rows of zeros in front, or so many rows of the front away."""
    return rows[-by:] if by < 0 else torch.cat([rows.new_zeros(by, rows.size(1)), rows])


def listed(names: Iterable[str]) -> str:
    """The first, and how many more."""
    first, *more = names
    return f"{first} (and {len(more)} more)" if more else first
