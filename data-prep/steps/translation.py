"""A parallel corpus from raw pairs to fairseq's binary data: tokens, cleaning, subwords, check."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import subwords
from steps.binary import binarise_text, build_dictionary, count_tokens
from steps.errors import PrepError
from steps.lines import Report
from steps.overlap import check, parallel_lines, write, writers
from steps.parallel import map_chunks

Pairs = Iterable[tuple[str, str]]
SPLITS = ("train", "valid", "test")
MAX_WORD = 1_000  # characters


@dataclass(frozen=True)
class Recipe:
    """How text becomes tokens. The defaults are those of fairseq's IWSLT14 recipe."""

    source_lang: str = "de"
    target_lang: str = "en"
    moses: bool = True
    normalise: bool = False  # Moses' punctuation, and no characters that do not print
    split_dashes: bool = False  # Moses' "aggressive" tokens: well @-@ known
    lowercase: bool = True
    subwords: str = "bpe"
    size: int = 10_000
    min_tokens: int = 1
    max_tokens: int = 175
    ratio: float = 1.5  # of the two lengths; 0 asks for none
    clean_on: str = "tokens"  # or "subwords": what the three limits above count
    valid_every: int = 0  # every n-th clean training pair becomes the validation set
    drop_leaked: bool = False  # training pairs that a held-out set has too
    shards: int = 1

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang


@dataclass
class Figures:
    """What became of one split."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def reason_to_drop(source: str, target: str, recipe: Recipe) -> str | None:
    """Moses' clean-corpus-n: length in tokens, ratio of lengths, words without end."""
    lengths = len(source.split()), len(target.split())
    if min(lengths) < recipe.min_tokens:
        return "empty or too short"
    if max(lengths) > recipe.max_tokens:
        return "too long"
    if recipe.ratio and max(lengths) > recipe.ratio * min(lengths):
        return "lengths too different"
    if max(len(source), len(target)) > MAX_WORD and any(
        len(word) > MAX_WORD for text in (source, target) for word in text.split()
    ):
        return "a word too long"
    return None


def write_tokens(split: str, pairs: Pairs, recipe: Recipe, folder: Path, workers: int) -> Figures:
    """Tokenise, clean and write one split."""
    figures = Figures()
    # Held-out sets are judged on every sentence they have: only training data is cleaned.
    clean = split == "train" and recipe.clean_on == "tokens"
    options = (recipe.moses, recipe.normalise, recipe.split_dashes, recipe.lowercase)
    found = map_chunks(subwords.pair_tokenizer, (recipe.languages, *options), pairs, workers)
    with writers(folder / split, recipe.languages) as files:
        for source, target in tqdm(found, f"{split}: tokens", leave=False, disable=None):
            figures.read += 1
            reason = reason_to_drop(source, target, recipe) if clean else None
            if reason:
                figures.dropped[reason] += 1
                continue
            figures.kept += 1
            write(files, (source + "\n", target + "\n"))
    if not figures.kept:
        raise PrepError(f"the {split} set has no sentence left of {figures.read}")
    return figures


def carve_valid(recipe: Recipe, folder: Path) -> tuple[int, int]:
    """Move every n-th training pair to the validation set; how many stay and how many go."""
    counts = [0, 0]
    with (
        writers(folder / "rest", recipe.languages) as rest,
        writers(folder / "valid", recipe.languages) as valid,
    ):
        for number, lines in enumerate(parallel_lines(folder / "train", recipe.languages), 1):
            goes = number % recipe.valid_every == 0
            counts[goes] += 1
            write(valid if goes else rest, lines)
    for lang in recipe.languages:
        (folder / f"rest.{lang}").replace(folder / f"train.{lang}")
    if not all(counts):
        raise PrepError(f"too few training pairs to take every {recipe.valid_every}th for valid")
    return counts[0], counts[1]


def clean_subwords(recipe: Recipe, cut: Path, figures: Figures) -> None:
    """The limits on lengths, where the recipe counts subwords."""
    with writers(cut / "rest", recipe.languages) as files:
        for lines in parallel_lines(cut / "train", recipe.languages):
            if reason := reason_to_drop(*lines, recipe):
                figures.dropped[reason] += 1
                figures.kept -= 1
            else:
                write(files, lines)
    for lang in recipe.languages:
        (cut / f"rest.{lang}").replace(cut / f"train.{lang}")
    if not figures.kept:
        raise PrepError(f"the train set has no sentence left of {figures.read}")


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


def shard_folders(out: Path, shards: int) -> list[Path]:
    """Where fairseq reads the parts of the training data from: ``--data a:b:c``."""
    return [out] if shards == 1 else [out / f"shard{number}" for number in range(shards)]


def split_training(recipe: Recipe, cut: Path) -> list[Path]:
    """The training text in parts, line by line in turn; the prefix of each."""
    prefixes = [cut / f"train{number}" for number in range(recipe.shards)]
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(writers(prefix, recipe.languages)) for prefix in prefixes]
        for number, lines in enumerate(parallel_lines(cut / "train", recipe.languages)):
            write(parts[number % recipe.shards], lines)
    return prefixes


def binarise(recipe: Recipe, cut: Path, out: Path, splits: list[str], workers: int) -> None:
    """What fairseq-preprocess --joined-dictionary writes, with one dictionary for all shards."""
    dictionary = cut / "dict.txt"
    build_dictionary([cut / f"train.{lang}" for lang in recipe.languages], dictionary, workers)
    prefixes = {split: [cut / split] for split in splits}
    if recipe.shards > 1:
        prefixes["train"] = split_training(recipe, cut)
    pair = "-".join(recipe.languages)
    for number, folder in enumerate(shard_folders(out, recipe.shards)):
        # fairseq reads the held-out sets from the first folder only.
        here = {split: paths[number] for split, paths in prefixes.items() if len(paths) > number}
        for lang in recipe.languages:
            texts = {split: path.with_name(f"{path.name}.{lang}") for split, path in here.items()}
            binarise_text(texts, folder, workers, dictionary, f".{pair}.{lang}")


def tokens_of(recipe: Recipe, out: Path, split: str) -> dict[str, Any]:
    """Tokens on each side of a split, and the share of unknown ones."""
    found: dict[str, int] = {}
    unknown = 0
    for lang in recipe.languages:
        found[lang] = 0
        folders = shard_folders(out, recipe.shards)
        for folder in folders if split == "train" else folders[:1]:
            prefix = folder / f"{split}.{recipe.source_lang}-{recipe.target_lang}.{lang}"
            total, missing = count_tokens(prefix, folder / f"dict.{lang}.txt")
            found[lang] += total
            unknown += missing
    rate = unknown / max(1, sum(found.values()))
    return {"tokens": found, "unknown_rate": round(rate, 6)}


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
    found = {
        split: write_tokens(split, pairs, recipe, tokens, workers)
        for split, (pairs, _) in corpus.items()
    }
    if recipe.valid_every:
        found["train"].kept, held = carve_valid(recipe, tokens)
        found["valid"] = Figures(read=held, kept=held)
    names = [split for split in SPLITS if split in found]
    overlap = check(tokens, names, recipe.languages, recipe.drop_leaked)
    if overlap.dropped:
        found["train"].dropped["in a held-out set"] = overlap.dropped
        found["train"].kept -= overlap.dropped
    model = None
    if recipe.subwords == "none":
        shutil.copytree(tokens, cut, dirs_exist_ok=True)
    else:
        model = cut_subwords(recipe, tokens, cut, out, workers)
    if recipe.clean_on == "subwords":
        clean_subwords(recipe, cut, found["train"])
    binarise(recipe, cut, out, names, workers)
    splits: dict[str, Any] = {}
    for split in names:
        report = corpus[split][1] if split in corpus else Report()
        found[split].dropped.update(report.dropped)
        splits[split] = {
            "read": found[split].read,
            "kept": found[split].kept,
            "dropped": dict(found[split].dropped),
            "mended": dict(report.mended),
            "duplicates": overlap.duplicates[split],
            "seen_in_train": overlap.seen_in_train.get(split, 0),
            **tokens_of(recipe, out, split),
        }
    if not keep_text:
        shutil.rmtree(tokens)
        shutil.rmtree(cut)
    first = shard_folders(out, recipe.shards)[0]
    vocabulary = len((first / f"dict.{recipe.target_lang}.txt").read_text("utf-8").splitlines())
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
        counts = " and ".join(f"{n:,} {lang}" for lang, n in figures["tokens"].items())
        notes.append(f"{counts} tokens, {figures['unknown_rate']:.2%} unknown")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']} entries, joined")
    folders = shard_folders(out, manifest["recipe"]["shards"])
    lines.append(f"train with: fairseq-train {':'.join(map(str, folders))}")
    return "\n".join(lines)
