"""Ready-made subword models, and the fairseq flags that encode raw text in the same way."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from steps import subwords
from steps.errors import PrepError

# The files of a tokenizer that a model folder may contain; the weights are not copied.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
    *("vocab.json", "merges.txt", *subwords.GPT2_FILES, subwords.ALBERT_FILE, "dict.txt"),
)


def ready_made_files(kind: str, gpt2: Path | None, tokenizer: Path | None) -> list[Path]:
    """Return the files of a ready-made subword model; empty if the model has to be learnt.

    ``gpt2`` and ``tokenizer`` are the folders of --gpt2-files and --tokenizer.
    """
    for flag, folder, needed_kind in (
        ("--gpt2-files", gpt2, "gpt2"),
        ("--tokenizer", tokenizer, "tokenizer"),
    ):
        if folder is not None and kind != needed_kind:
            raise PrepError(f"{flag} needs --subwords {needed_kind}, but --subwords is {kind}")
    if kind == "tokenizer":
        if tokenizer is None:
            raise PrepError("--subwords tokenizer needs --tokenizer FOLDER")
        subwords.load_tokenizer(tokenizer)
        return _existing(tokenizer, TOKENIZER_FILES)
    if kind == "gpt2" and gpt2 is not None:
        for name in subwords.GPT2_FILES:
            if not (gpt2 / name).is_file():
                raise PrepError(f"{gpt2 / name} does not exist")
        return _existing(gpt2, (*subwords.GPT2_FILES, "dict.txt"))
    return []


def _existing(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def copy_model(files: Sequence[Path], folder: Path) -> None:
    """Copy the files of a subword model into a new folder."""
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)


def raw_text_flags(kind: str, name: str | None, model: Path | None) -> str:
    """Return fairseq's flags to encode raw text like the data; ``{out}`` is the output folder."""
    if name is None or model is None:
        return ""
    location = f"{{out}}/{name}"
    if kind == "gpt2":
        encoder, merges = (f"{location}/{file}" for file in subwords.GPT2_FILES)
        return f"--bpe gpt2 --gpt2-encoder-json {encoder} --gpt2-vocab-bpe {merges}"
    if kind.startswith("spm-"):
        return f"--bpe sentencepiece --sentencepiece-model {location}"
    if (model / "vocab.txt").is_file():
        cased = "" if subwords.is_lowercase(model) else " --bpe-cased"
        return f"--bpe bert --bpe-vocab-file {location}/vocab.txt{cased}"
    return (
        "none, because fairseq's --bpe has no such kind; split the text with the tokenizer in "
        f"{location}"
    )
