"""Loads the masked language models and sentence encoders that attacks use.

A folder that ``stochattn-import`` wrote runs in fairseq, a folder in Hugging Face's layout in
transformers.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from .. import compat
from ..core.errors import InputError
from ..core.optional import optional_import
from ..pretrained.huggingface_folder import CONFIG
from ..pretrained.import_huggingface import DICTIONARY, MODEL, NOT_IMPORTED
from .attacks.encoders import FillMask, MeanPooling, TextModel
from .data_prep import prep_errors, script_module
from .fairseq_errors import reading
from .loading import load_models, no_warnings

LM_HEAD = "encoder.lm_head."


def load_fill_mask(folder: Path) -> FillMask:
    """Load the masked language model in a folder, for BAE."""
    return FillMask(_load(folder, "--masked-lm", head=True))


def load_sentence_encoder(folder: Path) -> MeanPooling:
    """Load the encoder in a folder; a text is the mean of its hidden states."""
    return MeanPooling(_load(folder, "--sentence-encoder", head=False))


def _load(folder: Path, flag: str, head: bool) -> TextModel:
    if not folder.is_dir():
        raise InputError(f"{flag} {folder} is not a folder")
    if (folder / MODEL).is_file():
        return _imported(folder, flag, head)
    if (folder / CONFIG).is_file():
        return _of_transformers(folder, flag, head)
    raise InputError(f"{flag} {folder} has neither {MODEL} nor {CONFIG}")


def _imported(folder: Path, flag: str, head: bool) -> TextModel:
    """The model in a folder that ``stochattn-import`` wrote."""
    if not (folder / DICTIONARY).is_file():
        raise InputError(f"{flag} {folder} has no {DICTIONARY}")
    path = str(folder / MODEL)
    if head:
        missing = compat.load_checkpoint(path).get("extra_state", {}).get(NOT_IMPORTED, ())
        if any(name.startswith(LM_HEAD) for name in missing):
            raise InputError(
                f"{flag} {folder}: the imported model had no head for masked language modelling"
            )
    (model,), task, _ = load_models([path], str(folder), {})
    if head and not hasattr(model.encoder, "lm_head"):
        raise InputError(f"{flag} {folder} is not a masked language model")
    with prep_errors():
        tokenizer = script_module("steps.subwords").load_tokenizer(folder)
    symbols = task.source_dictionary

    def encode(text: str) -> list[int]:
        pieces = tokenizer.encode(text, add_special_tokens=False).tokens
        return [symbols.index(piece) for piece in pieces]

    def predict(tokens: Tensor, valid: Tensor, place: int) -> Tensor:
        return model(tokens)[0][:, place]  # (B, V)

    return TextModel(
        encode=encode,
        first=symbols.bos(),
        last=symbols.eos(),
        mask=symbols.index("<mask>"),
        pad=symbols.pad(),
        longest=model.max_positions(),
        symbols=symbols.symbols,
        predict=predict,
        hidden=lambda tokens, valid: model(tokens, features_only=True)[0],
    )


def _of_transformers(folder: Path, flag: str, head: bool) -> TextModel:
    """The model in a folder in Hugging Face's layout."""
    transformers = optional_import("transformers", flag, "huggingface")
    kind = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    with reading(f"{flag} {folder}"), no_warnings():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model, report = kind.from_pretrained(folder, output_loading_info=True)
    if head and report["missing_keys"]:
        raise InputError(f"{flag} {folder} has no head for masked language modelling")
    named = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    if None in named or (head and tokenizer.mask_token_id is None):
        raise InputError(f"{flag} {folder}: the tokenizer lacks a special token")
    model.eval()

    def encode(text: str) -> list[int]:
        options = {"truncation": False, "padding": False, "verbose": False}
        return tokenizer(text, add_special_tokens=False, **options)["input_ids"]

    def predict(tokens: Tensor, valid: Tensor, place: int) -> Tensor:
        return model(input_ids=tokens, attention_mask=valid.long()).logits[:, place]  # (B, V)

    def hidden(tokens: Tensor, valid: Tensor) -> Tensor:
        return model(input_ids=tokens, attention_mask=valid.long()).last_hidden_state

    positions = model.config.max_position_embeddings
    # RoBERTa's first position is the one after that of padding.
    offset = (model.config.pad_token_id or 0) + 1 if "roberta" in model.config.model_type else 0
    ids = range(max(model.config.vocab_size, len(tokenizer)))
    return TextModel(
        encode=encode,
        first=tokenizer.cls_token_id,
        last=tokenizer.sep_token_id,
        mask=tokenizer.mask_token_id,
        pad=tokenizer.pad_token_id,
        longest=positions - offset,
        symbols=[x or "" for x in tokenizer.convert_ids_to_tokens(list(ids))],
        predict=predict if head else None,
        hidden=None if head else hidden,
    )
