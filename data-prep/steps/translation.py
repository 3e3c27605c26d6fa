"""A parallel corpus from raw pairs to fairseq's binary data: tokens, cleaning, subwords, check."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tqdm import tqdm

from steps import subwords
from steps.errors import PrepError
from steps.lines import Report
from steps.parallel import map_chunks

Pairs = Iterable[tuple[str, str]]
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Recipe:
    """How text becomes tokens. The defaults are those of fairseq's IWSLT14 recipe."""

    source_lang: str = "de"
    target_lang: str = "en"
    moses: bool = True
    lowercase: bool = True
    subwords: str = "bpe"
    size: int = 10_000
    min_tokens: int = 1
    max_tokens: int = 175
    ratio: float = 1.5  # of the two lengths; 0 asks for none

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang


@dataclass
class Figures:
    """What became of one split."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    seen_in_train: int = 0


def reason_to_drop(source: str, target: str, recipe: Recipe) -> str | None:
    """Moses' clean-corpus-n: length in tokens and ratio of lengths."""
    lengths = len(source.split()), len(target.split())
    if min(lengths) < recipe.min_tokens:
        return "empty or too short"
    if max(lengths) > recipe.max_tokens:
        return "too long"
    if recipe.ratio and max(lengths) > recipe.ratio * min(lengths):
        return "lengths too different"
    return None


def write_tokens(
    split: str, pairs: Pairs, recipe: Recipe, folder: Path, workers: int, known: set[int]
) -> Figures:
    """Tokenise, clean and write one split; ``known`` are hashes of the training pairs so far."""
    figures = Figures()
    mine: set[int] = set()
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context((folder / f"{split}.{lang}").open("w", encoding="utf-8"))
            for lang in recipe.languages
        ]
        arguments = (recipe.languages, recipe.moses, recipe.lowercase)
        found = map_chunks(subwords.pair_tokenizer, arguments, pairs, workers)
        for source, target in tqdm(found, f"{split}: tokens", leave=False, disable=None):
            figures.read += 1
            # Held-out sets are judged on every sentence they have: only training data is cleaned.
            reason = reason_to_drop(source, target, recipe) if split == "train" else None
            if reason:
                figures.dropped[reason] += 1
                continue
            key = hash((source, target))
            figures.duplicates += key in mine
            figures.seen_in_train += split != "train" and key in known
            mine.add(key)
            figures.kept += 1
            for file, text in zip(files, (source, target), strict=True):
                file.write(text + "\n")
    if split == "train":
        known.update(mine)
    if not figures.kept:
        raise PrepError(f"the {split} set has no sentence left of {figures.read}")
    return figures


def cut_subwords(recipe: Recipe, tokens: Path, cut: Path, out: Path, workers: int) -> str:
    """Learn subwords on the training text of both sides, apply them to all; name the model."""
    model = out / ("codes" if recipe.subwords == "bpe" else "spm.model")
    train = [tokens / f"train.{lang}" for lang in recipe.languages]
    subwords.learn(recipe.subwords, train, recipe.size, model)
    for file in sorted(tokens.iterdir()):
        arguments = (recipe.subwords, model)
        with (
            file.open(encoding="utf-8") as lines,
            (cut / file.name).open("w", encoding="utf-8") as target,
        ):
            stripped = (line.rstrip("\n") for line in lines)
            bar = tqdm(stripped, desc=f"{file.name}: subwords", leave=False, disable=None)
            for line in map_chunks(subwords.applier, arguments, bar, workers):
                target.write(line + "\n")
    return model.name


@contextlib.contextmanager
def _quiet_fairseq() -> Iterator[None]:
    """fairseq reports every file; here its warnings are enough."""
    loggers = [logging.getLogger(name) for name in ("fairseq", "fairseq_cli.preprocess")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with contextlib.redirect_stdout(None):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def binarise(recipe: Recipe, cut: Path, out: Path, splits: list[str], workers: int) -> None:
    """fairseq-preprocess with a joined dictionary."""
    from fairseq_cli import preprocess

    prefixes = [arg for split in splits for arg in (f"--{split}pref", str(cut / split))]
    languages = ["-s", recipe.source_lang, "-t", recipe.target_lang, "--joined-dictionary"]
    target = ["--destdir", str(out), "--workers", str(workers)]
    with mock.patch("sys.argv", ["fairseq-preprocess", *languages, *prefixes, *target]):
        preprocess.cli_main()


def _unknown_rate(out: Path, recipe: Recipe, split: str) -> float:
    from fairseq.data import Dictionary, data_utils

    lang = recipe.target_lang
    dictionary = Dictionary.load(str(out / f"dict.{lang}.txt"))
    name = f"{split}.{recipe.source_lang}-{recipe.target_lang}.{lang}"
    data = data_utils.load_indexed_dataset(str(out / name), dictionary)
    unknown = sum(int((row == dictionary.unk()).sum()) for row in data)
    return unknown / max(1, int(data.sizes.sum()))


def prepare(
    corpus: dict[str, tuple[Pairs, Report]],
    recipe: Recipe,
    out: Path,
    workers: int,
    keep_text: bool = False,
) -> dict[str, Any]:
    """All steps into ``out``; returns the figures of the manifest."""
    if recipe.subwords not in subwords.KINDS:
        raise PrepError(f"unknown subwords {recipe.subwords!r}: {', '.join(subwords.KINDS)}")
    tokens, cut = out / "tokens", out / "cut"
    tokens.mkdir()
    cut.mkdir()
    known: set[int] = set()
    splits: dict[str, Any] = {}
    for split, (pairs, report) in corpus.items():
        figures = write_tokens(split, pairs, recipe, tokens, workers, known)
        figures.dropped.update(report.dropped)
        splits[split] = {
            **vars(figures),
            "dropped": dict(figures.dropped),
            "mended": dict(report.mended),
        }
    model = None
    if recipe.subwords == "none":
        cut = tokens
    else:
        model = cut_subwords(recipe, tokens, cut, out, workers)
    with _quiet_fairseq():
        binarise(recipe, cut, out, list(corpus), workers)
        for split in corpus:
            splits[split]["unknown_rate"] = round(_unknown_rate(out, recipe, split), 6)
    if not keep_text:
        shutil.rmtree(tokens)
        shutil.rmtree(out / "cut")
    vocabulary = len((out / f"dict.{recipe.target_lang}.txt").read_text("utf-8").splitlines())
    return {"recipe": asdict(recipe), "splits": splits, "model": model, "vocabulary": vocabulary}


def summary(manifest: dict[str, Any], out: Path) -> str:
    """What a user wants to read at the end."""
    lines = []
    for split, figures in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(figures["dropped"].items())) or "none"
        lines.append(f"{split}: {figures['kept']} pairs kept, dropped: {dropped}")
        notes = [f"{n} lines with {what}" for what, n in figures["mended"].items()]
        if figures["duplicates"]:
            notes.append(f"{figures['duplicates']} duplicates (kept)")
        if figures["seen_in_train"]:
            notes.append(f"{figures['seen_in_train']} pairs that are in train too")
        notes.append(f"{figures['unknown_rate']:.2%} unknown")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']} entries, joined")
    lines.append(f"train with: fairseq-train {out}")
    return "\n".join(lines)
