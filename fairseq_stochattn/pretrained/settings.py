"""config.json of a pretrained encoder ↔ the flags of fairseq's model."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from torch import Tensor

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.embeddings import EmbeddingConfig
from fairseq_stochattn.pretrained.families import (
    FIRST_POSITION,
    HEAD,
    POOLING_HEAD,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    Family,
)

SIZES = {
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
}
DROPOUTS = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
# What config.json may say and fairseq's encoders are not.
ONLY = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}
# What fairseq's encoders may be and these families are not.
POST_NORM = {
    "encoder_normalize_before": False,
    "layernorm_embedding": True,
    "no_token_positional_embeddings": False,
}


def flags_of(config: dict[str, Any], family: Family, where: str) -> dict[str, Any]:
    """The flags of the model that config.json describes, but for its segments."""
    sizes = SIZES | family.sizes
    for key in (*sizes, "vocab_size"):
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise UsageError(f"{where}: {key} is missing or no positive number")
    for key, possible in ONLY.items():
        if config.get(key) not in possible:
            raise UsageError(f"{where}: fairseq's encoders have no {key} {config[key]}")
    heads, width = config["num_attention_heads"], config["hidden_size"]
    if width % heads:
        raise UsageError(f"{where}: {heads} heads do not divide the width {width}")
    activation = config.get("hidden_act", "gelu")
    if activation not in family.activations:
        known = ", ".join(family.activations)
        raise UsageError(f"{where}: hidden_act '{activation}' is not known (known: {known})")
    places = config.get("max_position_embeddings", 512)
    return {
        **{ours: config[theirs] for theirs, ours in sizes.items()},
        "max_positions": places - family.first_position(config),
        "activation_fn": family.activations[activation],
        "pooler_activation_fn": family.pooler,
        **{ours: config.get(theirs, 0.1) for theirs, ours in DROPOUTS.items()},
        "layer_norm_eps": config.get("layer_norm_eps", 1e-12),
        "untie_weights_roberta": not config.get("tie_word_embeddings", True),
    }


def config_of(
    args: Namespace, weights: dict[str, Tensor], family: Family, base: dict[str, Any]
) -> dict[str, Any]:
    """config.json of a model with these flags and weights; the rest of it as ``base`` has it."""
    needed = dict(POST_NORM)
    if any(name.startswith((f"classification_heads.{HEAD}.", POOLING_HEAD)) for name in weights):
        needed["pooler_activation_fn"] = family.pooler
    for flag, value in needed.items():
        if getattr(args, flag, value) != value:
            raise UsageError(f"{base['model_type']} is {flag} {value}, this model is not")
    same = SIZES | family.sizes | DROPOUTS
    config = {
        **base,
        **{theirs: getattr(args, ours) for theirs, ours in same.items()},
        "vocab_size": len(weights[TOKENS]),
        "hidden_act": _activation(args.activation_fn, family, base),
        "layer_norm_eps": getattr(args, "layer_norm_eps", EmbeddingConfig.layer_norm_eps),
        "tie_word_embeddings": not args.untie_weights_roberta,
        "type_vocab_size": base.get("type_vocab_size", family.segments),
        "dtype": str(weights[TOKENS].dtype).removeprefix("torch."),
    }
    config.pop("torch_dtype", None)  # the former name of dtype
    if SEGMENTS in weights:
        config["type_vocab_size"] = len(weights[SEGMENTS])
    places = len(weights[POSITIONS]) - FIRST_POSITION
    config["max_position_embeddings"] = places + family.first_position(config)
    classes = weights.get(f"classification_heads.{HEAD}.out_proj.bias")
    if classes is not None and len(base.get("id2label", ())) != len(classes):
        config.pop("id2label", None)
        config.pop("label2id", None)
        config["num_labels"] = len(classes)
    return config


def _activation(wanted: str, family: Family, base: dict[str, Any]) -> str:
    """What ``base`` calls it, if it means this one; else its most usual name."""
    names = [base.get("hidden_act"), *family.activations]
    found = next((name for name in names if family.activations.get(name) == wanted), None)
    if found is None:
        raise UsageError(f"{base['model_type']} has no --activation-fn {wanted}")
    return found
