"""Tiny models of every arch, plain and of this package, and batches for them."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from torch import Tensor, nn

import graph_texts
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.models import backbone as backbones

VOCABULARY = 50
PAD, EOS = 1, 2

TINY = {
    "transformer": {
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 2,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "decoder_attention_heads": 2,
        "max_source_positions": 64,
        "max_target_positions": 64,
    },
    "transformer_lm": {
        "decoder_embed_dim": 16,
        "decoder_input_dim": 16,
        "decoder_output_dim": 16,
        "decoder_ffn_embed_dim": 32,
        "decoder_attention_heads": 2,
        "decoder_layers": 3,
        "max_target_positions": 64,
        "tokens_per_sample": 64,
        "add_bos_token": False,
        "tpu": False,
    },
    "lstm": {
        "encoder_embed_dim": 16,
        "decoder_embed_dim": 16,
        "decoder_out_embed_dim": 16,
        "encoder_hidden_size": 16,
        "decoder_hidden_size": 16,
        "encoder_bidirectional": True,
        "criterion": "cross_entropy",
    },
    "roberta": {
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 2,
        "encoder_layers": 3,
        "max_positions": 64,
    },
    "graph_writer": graph_texts.SIZES,
    "electra": {
        "encoder_embed_dim": 16,
        "embedding_dim": 8,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 2,
        "encoder_layers": 3,
        "max_positions": 64,
    },
    "mcan": {
        "encoder_embed_dim": 8,
        "mcan_layers": 3,
        "mcan_dim": 16,
        "mcan_heads": 2,
        "mcan_ffn_dim": 32,
        "mcan_pooling_dim": 8,
        "mcan_output_dim": 12,
    },
    "albert": {
        "encoder_embed_dim": 16,
        "embedding_dim": 8,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 2,
        "encoder_layers": 3,
        "max_positions": 64,
        "babn_max_positions": 64,
    },
}
FEATURE_WIDTH, ANSWERS = 6, ["red", "green", "blue", "no", "yes"]  # of questions about images
# Graph attention has tests of its own (models/test_gat.py): it reads no sentences.
BACKBONES = {name: x for name, x in backbones.BACKBONES.items() if not x.graphs}
ENCODERS = ("roberta", "electra", "albert")  # models with one output per source token


def dictionary() -> Dictionary:
    """Return a dictionary with ``VOCABULARY`` entries."""
    symbols = Dictionary()
    for index in range(VOCABULARY - len(symbols)):
        symbols.add_symbol(f"w{index}")
    return symbols


def backbone_of(arch: str) -> str:
    """Return the longest backbone that is a prefix: transformer_lm_babn → transformer_lm."""
    return max((name for name in BACKBONES if arch.startswith(name)), key=len)


def task(**more: Any) -> SimpleNamespace:
    """Return an object with the attributes of a task that models and criterions use."""
    symbols = dictionary()
    return SimpleNamespace(
        source_dictionary=symbols,
        target_dictionary=symbols,
        max_positions=lambda: 64,
        **{"cfg": SimpleNamespace(), "feature_width": FEATURE_WIDTH, "answers": ANSWERS, **more},
    )


def build(
    arch: str,
    seed: int = 1,
    dropout: float = 0.0,
    for_task: SimpleNamespace | None = None,
    **overrides: Any,
) -> nn.Module:
    """Return a tiny model of a plain arch or one of ours, by default without dropout."""
    rates = {"dropout": dropout, "attention_dropout": dropout, "activation_dropout": 0.0}
    args = Namespace(arch=arch, **{**TINY[backbone_of(arch)], **rates, **overrides})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    own = graph_texts.task() if backbone_of(arch) == "graph_writer" else task()
    return build_model(args, for_task or own)


SELF_ATTENTIVE = {
    "encoder_embed_dim": 6,
    "encoder_hidden_size": 4,
    "encoder_attention_heads": 3,
    "attention_hidden_size": 5,
    "mlp_hidden_size": 7,
}


def classifier(seed: int = 1, separator: int | None = None, **overrides: Any) -> nn.Module:
    """Return a tiny self-attentive classifier of three classes, by default without dropout."""
    task = SimpleNamespace(
        source_dictionary=dictionary(), cfg=SimpleNamespace(separator_token=separator)
    )
    flags = {**SELF_ATTENTIVE, "dropout": 0.0, **overrides}
    torch.manual_seed(seed)
    model = build_model(Namespace(arch="self_attentive", **flags), task)
    model.register_classification_head("sentence_classification_head", num_classes=3)
    return model


def classify(model: nn.Module, rows: list[Tensor], left: bool = False, width: int = 0) -> Tensor:
    """Return the logits (B, 3) of a classifier for a batch, padded on the given side."""
    head = {"classification_head_name": "sentence_classification_head"}
    return model(pad(rows, left=left, width=width), features_only=True, **head)[0]


def all_pairs() -> list[tuple[str, str]]:
    """Return every (backbone, method) that exists as an arch."""
    return [
        (backbone.name, method)
        for backbone in BACKBONES.values()
        for method in METHODS
        if set(METHODS[method].sites) & set(backbone.sites)
    ]


def sentences(*lengths: int, seed: int = 0) -> list[Tensor]:
    """Return random sentences of these lengths, each with an end-of-sentence token."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(4, VOCABULARY, (length,), generator=generator) for length in lengths]
    return [torch.cat([row[:-1], torch.tensor([EOS])]) for row in rows]


def pad(rows: list[Tensor], left: bool = False, width: int = 0) -> Tensor:
    """Return the rows as one tensor (B, width), padded on one side."""
    width = max([width, *map(len, rows)])
    out = torch.full((len(rows), width), PAD)
    for index, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        out[index, where] = row
    return out


def shift(rows: list[Tensor]) -> list[Tensor]:
    """Return decoder inputs: the end-of-sentence token moves to the front."""
    return [torch.cat([row[-1:], row[:-1]]) for row in rows]


def run(
    model: nn.Module,
    backbone: str,
    sources: list[Tensor],
    targets: list[Tensor],
    left: bool = False,
    width: int = 0,
) -> Tensor:
    """Return the outputs (B, T, V) of a model for a batch, with the source padded on one side.

    For ELECTRA these are the features of the discriminator. For MCAN they are (B, 1, answers); the
    targets become images with one region per token, and questions are always padded on the right.
    GraphWriter reads graphs made of the sources.
    """
    if backbone == "mcan":
        return model(**questions(sources, targets, width))[0].unsqueeze(1)
    if backbone == "graph_writer":
        previous = pad(shift(targets))
        return model(prev_output_tokens=previous, **graph_texts.inputs(sources))[0]
    if backbone == "transformer_lm":
        return model(pad(shift(targets), width=width))[0]
    tokens = pad(sources, left=left, width=width)
    if backbone in ENCODERS:
        return model(tokens, features_only=backbone == "electra")[0]
    lengths = torch.tensor([len(row) for row in sources])
    return model(tokens, lengths, pad(shift(targets)))[0]


def questions(sources: list[Tensor], targets: list[Tensor], width: int = 0) -> dict[str, Tensor]:
    """Return inputs of MCAN: questions, and images with one region for every target token."""
    table = torch.randn(VOCABULARY, FEATURE_WIDTH, generator=torch.Generator().manual_seed(5))
    regions = [table[row] for row in targets]
    return {
        "src_tokens": pad(sources, width=width),
        "regions": nn.utils.rnn.pad_sequence(regions, batch_first=True),
        "num_regions": torch.tensor([len(row) for row in targets]),
    }


def non_padding_outputs(
    out: Tensor, backbone: str, rows: list[Tensor], left: bool = False
) -> Tensor:
    """Return the outputs (Σ lengths, V) at non-padding tokens, sentence after sentence."""
    padded_left = left and backbone in ENCODERS
    picked = [
        out[index, out.size(1) - len(row) :] if padded_left else out[index, : len(row)]
        for index, row in enumerate(rows)
    ]
    return torch.cat(picked)
