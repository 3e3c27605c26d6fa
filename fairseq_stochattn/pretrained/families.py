"""Families of encoders: tables that map Hugging Face's names of tensors and settings to fairseq's.

Import and export read the same tables in opposite directions. To support another kind of encoder,
add a ``Family``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InputError
from ..core.json_input import short
from ..models.electra import PRETRAINING_MODULES
from ..models.roberta import POOLER

# fairseq's names for the tensors that have one row per token, position or segment.
TOKENS = "encoder.sentence_encoder.embed_tokens.weight"
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"
SEGMENTS = "encoder.sentence_encoder.embed_segments.weight"
OUTPUT = "encoder.lm_head.weight"  # the same tensor as TOKENS if the weights are tied
OUTPUT_BIAS = "encoder.lm_head.bias"
FIRST_POSITION = 2  # fairseq's position row for the first token of a sentence; row 1 is for padding
# fairseq's task sentence_prediction uses this name for its classification head.
HEAD = "sentence_classification_head"
POOLING_HEAD = f"classification_heads.{POOLER}."
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclass(frozen=True)
class Part:
    """A group of tensors; a model contains either all of them or none.

    ``names`` maps Hugging Face's names to fairseq's. A name without .weight or .bias stands for
    both tensors, and {n} stands for the index of every layer.
    """

    names: dict[str, str]
    # The model has this part if it has the tensor with this Hugging Face name; with "", always.
    marker: str = ""
    # The last part of the name of transformers' class for models with this part.
    class_suffix: str = ""
    # The layer that predicts tokens. Its weight is usually tied to the token embedding.
    output_layer: str = ""
    # Whether a model with this config.json can have the part.
    applies: Callable[[dict[str, Any]], bool] = lambda config: True

    @property
    def output_bias(self) -> str:
        """Hugging Face's name for the bias of the output layer."""
        return next(hf for hf, fairseq in self.names.items() if fairseq == OUTPUT_BIAS)

    def expand(self, layers: int, tied: bool) -> dict[str, str]:
        """The names of all tensors of a model, Hugging Face's → fairseq's.

        The weight of the output layer is included unless it is ``tied`` to the token embedding.
        """
        expanded = {}
        for hf, fairseq in self.names.items():
            single = hf.endswith((".weight", ".bias"))
            for kind in ("",) if single else (".weight", ".bias"):
                for n in range(layers) if "{n}" in hf else (0,):
                    expanded[hf.format(n=n) + kind] = fairseq.format(n=n) + kind
        if self.output_layer and not tied:
            expanded[f"{self.output_layer}.weight"] = OUTPUT
        return expanded


@dataclass(frozen=True)
class Family:
    """How Hugging Face and fairseq store one kind of encoder."""

    class_prefixes: dict[str, str]  # model_type in config.json → start of transformers' class names
    encoder_prefix: str  # prefix of the encoder's tensors in a model that also has a head
    parts: tuple[Part, ...]  # if parts share tensors, the largest part must come first
    # hidden_act → --activation-fn. If several have the same value, the export uses the first.
    activations: dict[str, str]
    default_segments: int  # type_vocab_size if config.json does not contain it
    first_position: Callable[[dict[str, Any]], int]  # position row of a sentence's first token
    two_separators: bool  # whether two separators, not one, divide the sentences of a pair
    # Name prefixes of Hugging Face's tensors that fairseq lacks and the import skips.
    skipped: tuple[str, ...] = BUFFERS
    # Name prefixes of fairseq's tensors that only pre-training needs. If a checkpoint lacks such a
    # tensor, the model keeps the initial values.
    pretraining_only: tuple[str, ...] = ()
    # Name prefixes of tensors that cannot be imported → the reason.
    refused: dict[str, str] = field(default_factory=dict)
    # Keys of config.json that only this family has, for sizes → fairseq's flags.
    extra_sizes: dict[str, str] = field(default_factory=dict)
    # Keys of config.json → the value if the key is missing, or the only value that is supported.
    defaults: dict[str, Any] = field(default_factory=dict)
    required: dict[str, Any] = field(default_factory=dict)
    head_activation: str = "tanh"  # activation function inside classification heads
    backbone: str = "roberta"
    pretraining_task: str = "masked_lm"  # its criterion has the same name

    @property
    def predicts_tokens(self) -> bool:
        """Whether models of this family can have a masked language modelling head."""
        return any(part.output_layer for part in self.parts)


def _first_position_after_padding(config: dict[str, Any]) -> int:
    """The row after the row whose index is the padding id, as in fairseq."""
    padding = config.get("pad_token_id")
    return (1 if padding is None else padding) + 1


GELU = {"gelu": "gelu", "gelu_python": "gelu"}

_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": TOKENS,
    "embeddings.position_embeddings.weight": POSITIONS,
    "embeddings.token_type_embeddings.weight": SEGMENTS,
    "embeddings.LayerNorm": "encoder.sentence_encoder.layernorm_embedding",
}
ENCODER = Part(
    {
        **_EMBEDDINGS,
        **{
            f"encoder.layer.{{n}}.{hf}": f"encoder.sentence_encoder.layers.{{n}}.{fairseq}"
            for hf, fairseq in {
                "attention.self.query": "self_attn.q_proj",
                "attention.self.key": "self_attn.k_proj",
                "attention.self.value": "self_attn.v_proj",
                "attention.output.dense": "self_attn.out_proj",
                "attention.output.LayerNorm": "self_attn_layer_norm",
                "intermediate.dense": "fc1",
                "output.dense": "fc2",
                "output.LayerNorm": "final_layer_norm",
            }.items()
        },
    }
)
POOLING = Part({"pooler.dense": f"{POOLING_HEAD}dense"}, marker="pooler.dense.weight")
CLASSIFIER = Part(
    {
        "classifier.dense": f"classification_heads.{HEAD}.dense",
        "classifier.out_proj": f"classification_heads.{HEAD}.out_proj",
    },
    marker="classifier.out_proj.weight",
    class_suffix="ForSequenceClassification",
)

BERT = Family(
    class_prefixes={"bert": "Bert"},
    encoder_prefix="bert.",
    parts=(
        ENCODER,
        Part(
            # BERT classifies the output of its pooler. In fairseq both layers belong to the head.
            {
                "pooler.dense": f"classification_heads.{HEAD}.dense",
                "classifier": f"classification_heads.{HEAD}.out_proj",
            },
            marker="classifier.weight",
            class_suffix="ForSequenceClassification",
        ),
        POOLING,
        Part(
            {
                "cls.predictions.transform.dense": "encoder.lm_head.dense",
                "cls.predictions.transform.LayerNorm": "encoder.lm_head.layer_norm",
                "cls.predictions.bias": OUTPUT_BIAS,
            },
            marker="cls.predictions.transform.dense.weight",
            class_suffix="ForMaskedLM",
            output_layer="cls.predictions.decoder",
        ),
    ),
    activations={
        **GELU,
        **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_accurate"),
        "relu": "relu",
    },
    default_segments=2,
    first_position=lambda config: 0,
    two_separators=False,
    skipped=(*BUFFERS, "cls.seq_relationship."),  # the head for next-sentence prediction
)

ROBERTA = Family(
    class_prefixes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    encoder_prefix="roberta.",
    parts=(
        ENCODER,
        CLASSIFIER,
        POOLING,
        Part(
            {
                "lm_head.dense": "encoder.lm_head.dense",
                "lm_head.layer_norm": "encoder.lm_head.layer_norm",
                "lm_head.bias": OUTPUT_BIAS,
            },
            marker="lm_head.dense.weight",
            class_suffix="ForMaskedLM",
            output_layer="lm_head.decoder",
        ),
    ),
    # Only gelu is allowed, because transformers' head always uses gelu, while fairseq's head uses
    # the activation of the layers.
    activations=GELU,
    default_segments=1,
    first_position=_first_position_after_padding,
    two_separators=True,
)

ELECTRA = Family(
    class_prefixes={"electra": "Electra"},
    encoder_prefix="electra.",
    parts=(
        ENCODER,
        Part(
            {"embeddings_project": "encoder.sentence_encoder.embed_project"},
            applies=lambda config: config["embedding_size"] != config["hidden_size"],
        ),
        CLASSIFIER,
        Part(
            {
                "discriminator_predictions.dense": "encoder.rtd_head.dense",
                "discriminator_predictions.dense_prediction": "encoder.rtd_head.out_proj",
            },
            marker="discriminator_predictions.dense.weight",
            class_suffix="ForPreTraining",
        ),
    ),
    activations=BERT.activations,
    default_segments=2,
    first_position=BERT.first_position,
    two_separators=False,
    pretraining_only=tuple(f"{part}." for part in PRETRAINING_MODULES),
    refused={"generator_": "ELECTRA's generator: import the discriminator (ElectraForPreTraining)"},
    extra_sizes={"embedding_size": "embedding_dim"},
    head_activation="gelu",
    backbone="electra",
    pretraining_task="electra",
)

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0."  # all layers have these tensors

ALBERT = Family(
    class_prefixes={"albert": "Albert"},
    encoder_prefix="albert.",
    parts=(
        Part(
            {
                **_EMBEDDINGS,
                "encoder.embedding_hidden_mapping_in": "encoder.sentence_encoder.embed_project",
                **{
                    f"{_LAYER}{hf}": f"encoder.sentence_encoder.layers.0.{fairseq}"
                    for hf, fairseq in {
                        "attention.query": "self_attn.q_proj",
                        "attention.key": "self_attn.k_proj",
                        "attention.value": "self_attn.v_proj",
                        "attention.dense": "self_attn.out_proj",
                        "attention.LayerNorm": "self_attn_layer_norm",
                        "ffn": "fc1",
                        "ffn_output": "fc2",
                        "full_layer_layer_norm": "final_layer_norm",
                    }.items()
                },
            }
        ),
        Part(
            {
                "pooler": f"classification_heads.{HEAD}.dense",
                "classifier": f"classification_heads.{HEAD}.out_proj",
            },
            marker="classifier.weight",
            class_suffix="ForSequenceClassification",
        ),
        Part({"pooler": f"{POOLING_HEAD}dense"}, marker="pooler.weight"),
        Part(
            {
                "predictions.dense": "encoder.lm_head.dense",
                "predictions.LayerNorm": "encoder.lm_head.layer_norm",
                "predictions.bias": OUTPUT_BIAS,
            },
            marker="predictions.dense.weight",
            class_suffix="ForMaskedLM",
            output_layer="predictions.decoder",
        ),
    ),
    activations=BERT.activations,
    default_segments=2,
    first_position=BERT.first_position,
    two_separators=False,
    skipped=(*BUFFERS, "sop_classifier."),  # the head for the order of two sentences
    extra_sizes=ELECTRA.extra_sizes,
    defaults={
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "embedding_size": 128,
    },
    required={"num_hidden_groups": 1, "inner_group_num": 1},
    backbone="albert",
)

FAMILIES = {
    name: family for family in (BERT, ROBERTA, ELECTRA, ALBERT) for name in family.class_prefixes
}


def family_of(config: dict[str, Any], where: str) -> Family:
    """The family of the model that config.json describes; ``where`` is the path of the file."""
    name = config.get("model_type")
    known = ", ".join(FAMILIES)
    if name is None:
        raise InputError(f"{where} has no model_type (known: {known})")
    if not isinstance(name, str) or name not in FAMILIES:
        raise InputError(f"{where}: model_type '{short(name)}' cannot be imported (known: {known})")
    return FAMILIES[name]
