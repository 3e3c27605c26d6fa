"""Converts config.json of a pretrained encoder to the flags of fairseq's model, and back."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from torch import Tensor

from ..core.errors import InputError
from ..core.json_input import short
from ..models.embeddings import EmbeddingConfig
from .families import FIRST_POSITION, HEAD, POOLING_HEAD, POSITIONS, SEGMENTS, TOKENS, Family

# Keys of config.json → fairseq's flags.
SIZES = {
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
}
DROPOUTS = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
# Keys of config.json → the only values that fairseq's encoders support.
SUPPORTED_VALUES = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}
# fairseq's flags → the only values that BERT, RoBERTa and ELECTRA support.
POST_NORM = {
    "encoder_normalize_before": False,
    "layernorm_embedding": True,
    "no_token_positional_embeddings": False,
}


# Larger numbers are mistakes. Without this check they would use up all memory.
LARGEST = {"num_hidden_layers": 1000}
LARGEST_SIZE = 10**7


def _check_numbers(config: dict[str, Any], where: str) -> None:
    """Raise ``InputError`` for values that no model can have, such as a dropout rate of 2."""
    if not isinstance(config.get("tie_word_embeddings", True), bool):
        raise InputError(f"{where}: tie_word_embeddings must be true or false")
    for key in DROPOUTS:
        value = config.get(key, 0.1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise InputError(f"{where}: {key} must be at least 0 and below 1, not {short(value)}")
    eps = config.get("layer_norm_eps", 1e-12)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 < eps < 1:
        raise InputError(f"{where}: layer_norm_eps must be above 0 and below 1, not {short(eps)}")
    rows = config.get("max_position_embeddings", 512)
    if isinstance(rows, bool) or not isinstance(rows, int) or not 2 < rows <= LARGEST_SIZE:
        raise InputError(
            f"{where}: max_position_embeddings {short(rows)} is not a number of positions"
        )
    pad = config.get("pad_token_id")
    vocabulary = config["vocab_size"]
    is_id = isinstance(pad, int) and not isinstance(pad, bool) and 0 <= pad < vocabulary
    if pad is not None and not is_id:
        raise InputError(
            f"{where}: pad_token_id {short(pad)} is not one of the {vocabulary} rows of the "
            "embedding"
        )


def flags_from_config(config: dict[str, Any], family: Family, where: str) -> dict[str, Any]:
    """The fairseq flags of the model that config.json describes; ``where`` is the path of the file.

    The number of segment embeddings is not included, because it depends on the weights.
    """
    sizes = SIZES | family.extra_sizes
    for key in (*sizes, "vocab_size"):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{where}: {key} is missing or not a positive integer")
        largest = LARGEST.get(key, LARGEST_SIZE)
        if value > largest:
            raise InputError(f"{where}: {key} {short(value)} is too large (at most {largest})")
    _check_numbers(config, where)
    required = {key: (value, None) for key, value in family.required.items()}
    for key, supported in (SUPPORTED_VALUES | required).items():
        if config.get(key) not in supported:
            value = short(config[key])
            raise InputError(f"{where}: fairseq's encoders do not support {key} {value}")
    heads, width = config["num_attention_heads"], config["hidden_size"]
    if width % heads:
        raise InputError(f"{where}: hidden_size {width} is not divisible by {heads} heads")
    activation = config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in family.activations:
        known = ", ".join(family.activations)
        raise InputError(
            f"{where}: hidden_act '{short(activation)}' is not supported (known: {known})"
        )
    position_rows = config.get("max_position_embeddings", 512)
    if position_rows <= family.first_position(config):
        raise InputError(
            f"{where}: max_position_embeddings {position_rows} leaves no position for a token, "
            f"because the first {family.first_position(config)} are not used"
        )
    return {
        **{flag: config[key] for key, flag in sizes.items()},
        "max_positions": position_rows - family.first_position(config),
        "activation_fn": family.activations[activation],
        "pooler_activation_fn": family.head_activation,
        **{flag: config.get(key, 0.1) for key, flag in DROPOUTS.items()},
        "layer_norm_eps": config.get("layer_norm_eps", 1e-12),
        "untie_weights_roberta": not config.get("tie_word_embeddings", True),
    }


def config_from_flags(
    args: Namespace, weights: dict[str, Tensor], family: Family, base: dict[str, Any]
) -> dict[str, Any]:
    """The content of config.json for the model with these fairseq flags and weights.

    Keys that neither the flags nor the weights determine have the value in ``base``.
    """
    required = dict(POST_NORM)
    if any(name.startswith((f"classification_heads.{HEAD}.", POOLING_HEAD)) for name in weights):
        required["pooler_activation_fn"] = family.head_activation
    for flag, value in required.items():
        found = getattr(args, flag, value)
        if found != value:
            raise InputError(
                f"{base['model_type']} requires {flag} {value}, but the checkpoint has {found}"
            )
    config = {
        **base,
        **family.required,
        **{k: getattr(args, f) for k, f in (SIZES | family.extra_sizes | DROPOUTS).items()},
        "vocab_size": len(weights[TOKENS]),
        "hidden_act": _hidden_act(args.activation_fn, family, base),
        "layer_norm_eps": getattr(args, "layer_norm_eps", EmbeddingConfig.layer_norm_eps),
        "tie_word_embeddings": not args.untie_weights_roberta,
        "type_vocab_size": base.get("type_vocab_size", family.default_segments),
        "dtype": str(weights[TOKENS].dtype).removeprefix("torch."),
    }
    config.pop("torch_dtype", None)  # an older name for dtype
    if SEGMENTS in weights:
        config["type_vocab_size"] = len(weights[SEGMENTS])
    positions = len(weights[POSITIONS]) - FIRST_POSITION
    config["max_position_embeddings"] = positions + family.first_position(config)
    class_bias = weights.get(f"classification_heads.{HEAD}.out_proj.bias")
    if class_bias is not None and len(base.get("id2label", ())) != len(class_bias):
        config.pop("id2label", None)
        config.pop("label2id", None)
        config["num_labels"] = len(class_bias)
    return config


def _hidden_act(activation_fn: str, family: Family, base: dict[str, Any]) -> str:
    """Hugging Face's name for fairseq's ``activation_fn``.

    If the family has several names for it, the name in ``base`` is preferred, then the first.
    """
    names = [base.get("hidden_act"), *family.activations]
    found = next((name for name in names if family.activations.get(name) == activation_fn), None)
    if found is None:
        raise InputError(f"{base['model_type']} does not support --activation-fn {activation_fn}")
    return found
