"""Tiny models with random weights of the families of transformers that sa.convert supports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

VOCABULARY = 40
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    **{f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers",)},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 24 for part in ("encoder", "decoder")},
    "max_position_embeddings": 32,
    "forced_eos_token_id": None,
}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pad_token_id": 0}
# Family → class of the model, of its configuration, and its settings.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", _SMALL),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", _SMALL),
    "electra": ("ElectraForSequenceClassification", "ElectraConfig", _SMALL),
    "albert": (
        *("AlbertForSequenceClassification", "AlbertConfig"),
        {**_SMALL, "embedding_size": 8, "num_hidden_layers": 3},
    ),
    "distilbert": (
        *("DistilBertForSequenceClassification", "DistilBertConfig"),
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    ),
    "deberta": ("DebertaForSequenceClassification", "DebertaConfig", {**_SMALL, **_RELATIVE}),
    "deberta_v2": (
        *("DebertaV2ForSequenceClassification", "DebertaV2Config"),
        {**_SMALL, **_RELATIVE, "position_buckets": 4, "share_att_key": True},
    ),
    "gpt2": (
        *("GPT2LMHeadModel", "GPT2Config"),
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**_SMALL, "num_key_value_heads": 1}),
    "bart": ("BartForConditionalGeneration", "BartConfig", _SEQ2SEQ),
    "marian": (
        *("MarianMTModel", "MarianConfig"),
        {**_SEQ2SEQ, "pad_token_id": 1, "decoder_start_token_id": 1},
    ),
    "t5": (
        *("T5ForConditionalGeneration", "T5Config"),
        {
            **{"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24},
            **{"num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
        },
    ),
}
SEQ2SEQ = ("bart", "marian", "t5")
CAUSAL = ("gpt2", "llama")


def build(family: str, **changes: Any) -> nn.Module:
    """A model of the family, the same one in every call. Weights are larger than usual."""
    import transformers
    from transformers.models.t5 import modeling_t5

    if family == "t5" and not hasattr(modeling_t5, "ALL_ATTENTION_FUNCTIONS"):
        pytest.skip("T5 follows transformers' attention interface from version 5.15 on")
    model_class, config_class, settings = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**settings, **changes})
    # GPT-2's and Llama's special tokens are outside of the small vocabulary.
    config.bos_token_id, config.eos_token_id = 2, 3
    config.pad_token_id = getattr(config, "pad_token_id", None) or 0
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "classifier" not in name:
            nn.init.normal_(parameter, std=0.15)
    return model.eval()


def batch(family: str, lengths: tuple[int, ...] = (7, 4, 5)) -> dict[str, Tensor]:
    """A padded batch with labels. Causal models are padded on the left."""
    generator = torch.Generator().manual_seed(1)
    longest = max(lengths)
    ids = torch.randint(4, VOCABULARY, (len(lengths), longest), generator=generator)
    positions = torch.arange(longest)
    mask = torch.stack([positions < n for n in lengths])
    if family in CAUSAL:
        mask = mask.flip(1)
    pad = 1 if family in ("roberta", "bart", "marian") else 0
    inputs = {"input_ids": ids.masked_fill(~mask, pad), "attention_mask": mask.long()}
    if family in CAUSAL:
        # The first token of a sentence would be predicted from padding.
        predicted = mask & mask.roll(1, dims=1) & (positions > 0)
        return {**inputs, "labels": ids.masked_fill(~predicted, -100)}
    if family in SEQ2SEQ:
        targets = torch.randint(4, VOCABULARY, (len(lengths), 6), generator=generator)
        return {**inputs, "labels": targets}
    return {**inputs, "labels": torch.tensor([0, 1, 0, 1])[: len(lengths)]}
