"""Subword models that are given rather than learnt, and the flags that raw text then needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from steps import subwords
from steps.errors import PrepError

# What a model's folder may hold of its tokenizer; its weights stay where they are.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
    *("vocab.json", "merges.txt", *subwords.GPT2_FILES, "dict.txt"),
)


def given_files(kind: str, gpt2: Path | None, tokenizer: Path | None) -> list[Path]:
    """The files of a given model; none where it is to be learnt."""
    for flag, folder, wanted in (
        ("--gpt2-files", gpt2, "gpt2"),
        ("--tokenizer", tokenizer, "tokenizer"),
    ):
        if folder is not None and kind != wanted:
            raise PrepError(f"{flag} goes with --subwords {wanted}, not with {kind}")
    if kind == "tokenizer":
        if tokenizer is None:
            raise PrepError("--subwords tokenizer needs --tokenizer DIR")
        subwords.load_tokenizer(tokenizer)
        return _present(tokenizer, TOKENIZER_FILES)
    if kind == "gpt2" and gpt2 is not None:
        for name in subwords.GPT2_FILES:
            if not (gpt2 / name).is_file():
                raise PrepError(f"{gpt2 / name} does not exist")
        return _present(gpt2, (*subwords.GPT2_FILES, "dict.txt"))
    return []


def _present(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def copy_given(files: Sequence[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)


def raw_text_flags(kind: str, name: str | None, model: Path | None) -> str:
    """fairseq's flags that cut raw text as the data is cut; ``{out}`` stands for the output."""
    if name is None or model is None:
        return ""
    place = f"{{out}}/{name}"
    if kind == "gpt2":
        encoder, merges = (f"{place}/{file}" for file in subwords.GPT2_FILES)
        return f"--bpe gpt2 --gpt2-encoder-json {encoder} --gpt2-vocab-bpe {merges}"
    if kind.startswith("spm-"):
        return f"--bpe sentencepiece --sentencepiece-model {place}"
    if (model / "vocab.txt").is_file():
        config = model / "tokenizer_config.json"
        options = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        cased = "" if options.get("do_lower_case", True) else " --bpe-cased"
        return f"--bpe bert --bpe-vocab-file {place}/vocab.txt{cased}"
    return f"no --bpe of fairseq writes these tokens; cut it with the tokenizer in {place}"
