"""Families of encoders: what Hugging Face calls a tensor or a setting, and what fairseq does.

A family is tables of names, read in both directions. A further one is a further ``Family``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.models.electra import PRETRAINING
from fairseq_stochattn.models.roberta import POOLER

# fairseq's names of the tensors whose rows are tokens or positions.
TOKENS = "encoder.sentence_encoder.embed_tokens.weight"
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"
SEGMENTS = "encoder.sentence_encoder.embed_segments.weight"
OUTPUT = "encoder.lm_head.weight"  # the same as TOKENS where they are tied
OUTPUT_BIAS = "encoder.lm_head.bias"
FIRST_POSITION = 2  # fairseq's row of a sentence's first token, behind that of padding
# The name that fairseq's sentence_prediction gives to its head.
HEAD = "sentence_classification_head"
POOLING_HEAD = f"classification_heads.{POOLER}."
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclass(frozen=True)
class Part:
    """Tensors that are there together or not at all: Hugging Face's names to fairseq's.

    A name without .weight or .bias stands for both, {n} for the number of every layer.
    """

    names: dict[str, str]
    mark: str = ""  # the tensor that tells whether the part is there; without one it must be
    head: str = ""  # how transformers' classes with this part end
    output: str = ""  # the layer that writes tokens; its weight is usually the embedding's
    # Of config.json: whether a model has the part at all.
    wanted: Callable[[dict[str, Any]], bool] = lambda config: True

    @property
    def output_bias(self) -> str:
        return next(theirs for theirs, ours in self.names.items() if ours == OUTPUT_BIAS)

    def expand(self, layers: int, tied: bool) -> dict[str, str]:
        """Every tensor's two names; that of the output only where it is one of its own."""
        expanded = {}
        for theirs, ours in self.names.items():
            single = theirs.endswith((".weight", ".bias"))
            for kind in ("",) if single else (".weight", ".bias"):
                for n in range(layers) if "{n}" in theirs else (0,):
                    expanded[theirs.format(n=n) + kind] = ours.format(n=n) + kind
        if self.output and not tied:
            expanded[f"{self.output}.weight"] = OUTPUT
        return expanded


@dataclass(frozen=True)
class Family:
    """One kind of encoder in its two writings."""

    classes: dict[str, str]  # config.json's model_type → how transformers' classes begin
    prefix: str  # of the encoder's own tensors in a model with a head
    parts: tuple[Part, ...]  # one that uses tensors of another stands before it
    activations: dict[str, str]  # hidden_act → --activation-fn; the first of several is written
    segments: int  # type_vocab_size where config.json does not say
    first_position: Callable[[dict[str, Any]], int]  # row of a sentence's first token
    two_separators: bool  # between the sentences of a pair
    # Tensors that have no counterpart and are left out, by the beginnings of their names.
    without: tuple[str, ...] = BUFFERS
    # Of fairseq's: what pre-training alone needs, and makes anew where a checkpoint lacks it.
    pretraining: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  # tensor's beginning → why not
    sizes: dict[str, str] = field(default_factory=dict)  # config.json's, beyond those of all
    pooler: str = "tanh"  # activation inside classification heads
    backbone: str = "roberta"
    task: str = "masked_lm"  # of pre-training; its criterion is called the same

    @property
    def writes_tokens(self) -> bool:
        return any(part.output for part in self.parts)


def _behind_padding(config: dict[str, Any]) -> int:
    """As in fairseq: the row of the padding's own number is for padding."""
    padding = config.get("pad_token_id")
    return (1 if padding is None else padding) + 1


GELU = {"gelu": "gelu", "gelu_python": "gelu"}

ENCODER = Part(
    {
        "embeddings.word_embeddings.weight": TOKENS,
        "embeddings.position_embeddings.weight": POSITIONS,
        "embeddings.token_type_embeddings.weight": SEGMENTS,
        "embeddings.LayerNorm": "encoder.sentence_encoder.layernorm_embedding",
        **{
            f"encoder.layer.{{n}}.{theirs}": f"encoder.sentence_encoder.layers.{{n}}.{ours}"
            for theirs, ours in {
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
POOLING = Part({"pooler.dense": f"{POOLING_HEAD}dense"}, mark="pooler.dense.weight")
CLASSIFIER = Part(
    {
        "classifier.dense": f"classification_heads.{HEAD}.dense",
        "classifier.out_proj": f"classification_heads.{HEAD}.out_proj",
    },
    mark="classifier.out_proj.weight",
    head="ForSequenceClassification",
)

BERT = Family(
    classes={"bert": "Bert"},
    prefix="bert.",
    parts=(
        ENCODER,
        Part(
            # BERT classifies what its pooler gives: together they are fairseq's head.
            {
                "pooler.dense": f"classification_heads.{HEAD}.dense",
                "classifier": f"classification_heads.{HEAD}.out_proj",
            },
            mark="classifier.weight",
            head="ForSequenceClassification",
        ),
        POOLING,
        Part(
            {
                "cls.predictions.transform.dense": "encoder.lm_head.dense",
                "cls.predictions.transform.LayerNorm": "encoder.lm_head.layer_norm",
                "cls.predictions.bias": OUTPUT_BIAS,
            },
            mark="cls.predictions.transform.dense.weight",
            head="ForMaskedLM",
            output="cls.predictions.decoder",
        ),
    ),
    activations={
        **GELU,
        **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_accurate"),
        "relu": "relu",
    },
    segments=2,
    first_position=lambda config: 0,
    two_separators=False,
    without=(*BUFFERS, "cls.seq_relationship."),  # the head of next sentence prediction
)

ROBERTA = Family(
    classes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta.",
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
            mark="lm_head.dense.weight",
            head="ForMaskedLM",
            output="lm_head.decoder",
        ),
    ),
    activations=GELU,  # its head has gelu whatever hidden_act says, fairseq's has hidden_act
    segments=1,
    first_position=_behind_padding,
    two_separators=True,
)

ELECTRA = Family(
    classes={"electra": "Electra"},
    prefix="electra.",
    parts=(
        ENCODER,
        Part(
            {"embeddings_project": "encoder.sentence_encoder.embed_project"},
            wanted=lambda config: config["embedding_size"] != config["hidden_size"],
        ),
        CLASSIFIER,
        Part(
            {
                "discriminator_predictions.dense": "encoder.rtd_head.dense",
                "discriminator_predictions.dense_prediction": "encoder.rtd_head.out_proj",
            },
            mark="discriminator_predictions.dense.weight",
            head="ForPreTraining",
        ),
    ),
    activations=BERT.activations,
    segments=2,
    first_position=BERT.first_position,
    two_separators=False,
    pretraining=tuple(f"{part}." for part in PRETRAINING),
    refused={"generator_": "ELECTRA's generator; import its discriminator (ElectraForPreTraining)"},
    sizes={"embedding_size": "embedding_dim"},
    pooler="gelu",
    backbone="electra",
    task="electra",
)

FAMILIES = {name: family for family in (BERT, ROBERTA, ELECTRA) for name in family.classes}


def family_of(config: dict[str, Any], where: str) -> Family:
    """The family that config.json names."""
    name = config.get("model_type")
    known = ", ".join(FAMILIES)
    if name is None:
        raise UsageError(f"{where} has no model_type (known: {known})")
    if name not in FAMILIES:
        raise UsageError(f"{where}: model_type '{name}' cannot be imported (known: {known})")
    return FAMILIES[name]
