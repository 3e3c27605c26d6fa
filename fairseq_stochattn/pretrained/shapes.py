"""Compares the shapes of an encoder's tensors with the sizes in its config.json.

This happens before a model is built, so that absurd sizes in config.json never allocate memory:
every size that determines the model is also the size of a tensor in the file.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from ..core.errors import InputError
from .families import OUTPUT, POSITIONS, SEGMENTS, TOKENS, Family

_LAYER = "encoder.sentence_encoder.layers.{n}"
_HEAD = "classification_heads.{n}"
# fairseq's modules → the sizes of their weight: (H) hidden, (E) embedding, (I) intermediate,
# (P) positions, (?) any. The bias has the first of these sizes. The rows of tokens are compared
# with the vocabulary elsewhere.
_SIZES = {
    TOKENS.removesuffix(".weight"): "?E",
    POSITIONS.removesuffix(".weight"): "PE",
    SEGMENTS.removesuffix(".weight"): "?E",
    "encoder.sentence_encoder.layernorm_embedding": "E",
    "encoder.sentence_encoder.embed_project": "HE",
    **{f"{_LAYER}.self_attn.{x}_proj": "HH" for x in ("q", "k", "v", "out")},
    f"{_LAYER}.self_attn_layer_norm": "H",
    f"{_LAYER}.fc1": "IH",
    f"{_LAYER}.fc2": "HI",
    f"{_LAYER}.final_layer_norm": "H",
    OUTPUT.removesuffix(".weight"): "?E",
    "encoder.lm_head.dense": "EH",
    "encoder.lm_head.layer_norm": "E",
    "encoder.rtd_head.dense": "HH",
    "encoder.rtd_head.out_proj": "1H",
    f"{_HEAD}.dense": "HH",
    f"{_HEAD}.out_proj": "?H",
}
_INDEX = re.compile(r"(?<=layers\.)\d+|(?<=classification_heads\.)[^.]+")


def check_shapes(
    weights: dict[str, Tensor], config: dict[str, Any], family: Family, where: str
) -> None:
    """Raise unless the tensors, under fairseq's names, have the shapes that ``config`` describes.

    ``where`` is the folder of the model.
    """
    own_width = "embedding_size" in family.extra_sizes
    sizes = {
        "H": config["hidden_size"],
        "E": config["embedding_size" if own_width else "hidden_size"],
        "I": config["intermediate_size"],
        "P": config.get("max_position_embeddings", 512),
        "1": 1,
    }
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        letters = _SIZES[_INDEX.sub("{n}", module)]
        letters = letters if kind == "weight" else letters[:1]
        found = tuple(tensor.shape)
        wanted = [sizes.get(letter) for letter in letters]
        fits = len(found) == len(wanted) and all(
            size in (None, actual) for size, actual in zip(wanted, found, strict=True)
        )
        if not fits:
            shown = ", ".join("any" if size is None else str(size) for size in wanted)
            raise InputError(
                f"{where}: the shape of {name} is {found}, but according to config.json it should "
                f"be ({shown})"
            )
