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
from steps.binary import count_tokens, preprocess
from steps.duplicates import DuplicateCounter, fingerprint
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
    duplicates: int = 0
    seen_in_train: int = 0


class HeldOut:
    """The pairs of the held-out sets, and which of them the training data has too."""

    def __init__(self) -> None:
        self._pairs: dict[str, Counter[int]] = {}
        self._seen: set[int] = set()

    def add(self, split: str, pair: int) -> None:
        self._pairs.setdefault(split, Counter())[pair] += 1

    def leaks(self, pair: int) -> bool:
        """Whether a training pair is in a held-out set."""
        found = any(pair in pairs for pairs in self._pairs.values())
        if found:
            self._seen.add(pair)
        return found

    def seen_in_train(self, split: str) -> int:
        return sum(n for pair, n in self._pairs.get(split, {}).items() if pair in self._seen)


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
    split: str, pairs: Pairs, recipe: Recipe, folder: Path, workers: int, held_out: HeldOut
) -> Figures:
    """Tokenise, clean and write one split; the held-out sets come before the training set."""
    figures = Figures()
    duplicates = DuplicateCounter(folder.with_name("hashes"))
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context((folder / f"{split}.{lang}").open("w", encoding="utf-8"))
            for lang in recipe.languages
        ]
        arguments = (recipe.languages, recipe.moses, recipe.lowercase)
        found = map_chunks(subwords.pair_tokenizer, arguments, pairs, workers)
        for source, target in tqdm(found, f"{split}: tokens", leave=False, disable=None):
            figures.read += 1
            pair = fingerprint(source, target)
            if split == "train":
                reason = reason_to_drop(source, target, recipe)
                if reason is None and held_out.leaks(pair) and recipe.drop_leaked:
                    reason = "in a held-out set"
                if reason:
                    figures.dropped[reason] += 1
                    continue
            else:
                # They are judged on every sentence they have: only training data is cleaned.
                held_out.add(split, pair)
            duplicates.add(pair)
            figures.kept += 1
            for file, text in zip(files, (source, target), strict=True):
                file.write(text + "\n")
    figures.duplicates = duplicates.count()
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


def shard_folders(out: Path, shards: int) -> list[Path]:
    """Where fairseq reads the parts of the training data from: ``--data a:b:c``."""
    return [out] if shards == 1 else [out / f"shard{number}" for number in range(shards)]


def split_training(recipe: Recipe, cut: Path) -> list[Path]:
    """The training text in parts, line by line in turn; the prefix of each."""
    prefixes = [cut / f"train{number}" for number in range(recipe.shards)]
    for lang in recipe.languages:
        with (
            (cut / f"train.{lang}").open(encoding="utf-8") as lines,
            contextlib.ExitStack() as opened,
        ):
            parts = [
                opened.enter_context(prefix.with_suffix(f".{lang}").open("w", encoding="utf-8"))
                for prefix in prefixes
            ]
            for number, line in enumerate(lines):
                parts[number % recipe.shards].write(line)
    return prefixes


def binarise(recipe: Recipe, cut: Path, out: Path, splits: list[str], workers: int) -> None:
    """fairseq-preprocess with a joined dictionary, of all training data whatever the shards."""
    languages = ["-s", recipe.source_lang, "-t", recipe.target_lang, "--joined-dictionary"]
    prefixes = {split: [cut / split] for split in splits}
    known: list[object] = []
    if recipe.shards > 1:
        preprocess(out, workers, *languages, "--trainpref", cut / "train", "--dict-only")
        known = ["--srcdict", out / f"dict.{recipe.source_lang}.txt"]
        prefixes["train"] = split_training(recipe, cut)
    for number, folder in enumerate(shard_folders(out, recipe.shards)):
        # fairseq reads the held-out sets from the first folder only.
        here = {split: paths[number] for split, paths in prefixes.items() if len(paths) > number}
        given = [x for split, path in here.items() for x in (f"--{split}pref", path)]
        preprocess(folder, workers, *languages, *known, *given)


def tokens_of(recipe: Recipe, out: Path, split: str) -> dict[str, Any]:
    """Tokens on each side of a split, and the share of unknown ones."""
    found: dict[str, int] = {}
    unknown = 0
    for lang in recipe.languages:
        found[lang] = 0
        for folder in shard_folders(out, recipe.shards if split == "train" else 1):
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
    held_out = HeldOut()
    found: dict[str, Figures] = {}
    for split in sorted(corpus, key=lambda split: split == "train"):
        pairs, report = corpus[split]
        found[split] = write_tokens(split, pairs, recipe, tokens, workers, held_out)
        found[split].dropped.update(report.dropped)
    model = None
    if recipe.subwords == "none":
        shutil.copytree(tokens, cut, dirs_exist_ok=True)
    else:
        model = cut_subwords(recipe, tokens, cut, out, workers)
    binarise(recipe, cut, out, list(corpus), workers)
    splits: dict[str, Any] = {}
    for split, (_, report) in corpus.items():
        found[split].seen_in_train = held_out.seen_in_train(split)
        splits[split] = {
            **vars(found[split]),
            "dropped": dict(found[split].dropped),
            "mended": dict(report.mended),
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
