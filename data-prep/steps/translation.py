"""Turn the sentence pairs of a parallel corpus into fairseq's binary data.

Steps: tokenise, drop unsuitable pairs, find duplicates and leaked pairs, split into subwords,
binarise.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import subwords
from steps.binary import binarise_text, build_dictionary, count_tokens
from steps.errors import PrepError
from steps.lines import Report
from steps.overlap import find_overlap, open_writers, parallel_lines, write_lines
from steps.parallel import map_chunks

Pairs = Iterable[tuple[str, str]]
SPLITS = ("train", "valid", "test")
MAX_WORD = 1_000  # characters


@dataclass(frozen=True)
class Recipe:
    """The settings by which text is prepared. The defaults are fairseq's IWSLT14 recipe."""

    source_lang: str = "de"
    target_lang: str = "en"
    moses: bool = True
    normalise: bool = False  # normalise punctuation as Moses does, remove non-printing characters
    split_dashes: bool = False  # Moses' aggressive dash splitting: well @-@ known
    lowercase: bool = True
    subwords: str = "bpe"
    size: int = 10_000
    min_tokens: int = 1
    max_tokens: int = 175
    ratio: float = 1.5  # highest ratio of the two lengths; 0 means no limit
    clean_on: str = "tokens"  # the unit that the three limits above count: "tokens" or "subwords"
    valid_every: int = 0  # move every n-th clean training pair to the validation set; 0: none
    drop_leaked: bool = False  # drop training pairs that are in the validation or test set
    shards: int = 1
    first: int = 0  # use only this number of pairs from the start of the training set; 0: all
    separate: bool = False  # one dictionary per language instead of a joined one

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang


@dataclass
class SplitStats:
    """Number of pairs read, kept and dropped (by reason) in one split."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def reason_to_drop(source: str, target: str, recipe: Recipe) -> str | None:
    """Return why a training pair is dropped, or None to keep it.

    The rules are those of Moses' clean-corpus-n.perl: length, ratio of the lengths, longest word.
    """
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


def write_tokens(
    split: str, pairs: Pairs, recipe: Recipe, folder: Path, workers: int
) -> SplitStats:
    """Tokenise one split, drop unsuitable training pairs, and write the rest to ``folder``."""
    stats = SplitStats()
    # Only training data is cleaned, because results must cover all sentences of the validation and
    # test sets.
    clean = split == "train" and recipe.clean_on == "tokens"
    options = (recipe.moses, recipe.normalise, recipe.split_dashes, recipe.lowercase)
    if split == "train" and recipe.first:
        pairs = islice(pairs, recipe.first)
    # Built here once so that a missing library raises its error outside of a worker process.
    subwords.pair_tokenizer(recipe.languages, *options)
    tokens = map_chunks(subwords.pair_tokenizer, (recipe.languages, *options), pairs, workers)
    with open_writers(folder / split, recipe.languages) as files:
        for source, target in tqdm(tokens, f"{split}: tokenising", leave=False, disable=None):
            stats.read += 1
            reason = reason_to_drop(source, target, recipe) if clean else None
            if reason:
                stats.dropped[reason] += 1
                continue
            stats.kept += 1
            write_lines(files, (source + "\n", target + "\n"))
    if not stats.kept:
        raise PrepError(f"the {split} set is empty: 0 of {stats.read} pairs were kept")
    return stats


def hold_out_valid(recipe: Recipe, folder: Path) -> tuple[int, int]:
    """Move every n-th training pair to the validation set; return the sizes of both sets."""
    counts = [0, 0]
    with (
        open_writers(folder / "rest", recipe.languages) as rest,
        open_writers(folder / "valid", recipe.languages) as valid,
    ):
        for number, lines in enumerate(parallel_lines(folder / "train", recipe.languages), 1):
            held_out = number % recipe.valid_every == 0
            counts[held_out] += 1
            write_lines(valid if held_out else rest, lines)
    for lang in recipe.languages:
        (folder / f"rest.{lang}").replace(folder / f"train.{lang}")
    if not all(counts):
        raise PrepError(
            f"{sum(counts)} training pairs are too few: "
            f"every {recipe.valid_every}th becomes part of the validation set"
        )
    return counts[0], counts[1]


def drop_by_subwords(recipe: Recipe, subword_folder: Path, stats: SplitStats) -> None:
    """Drop unsuitable training pairs by their length in subwords."""
    with open_writers(subword_folder / "rest", recipe.languages) as files:
        for lines in parallel_lines(subword_folder / "train", recipe.languages):
            if reason := reason_to_drop(*lines, recipe):
                stats.dropped[reason] += 1
                stats.kept -= 1
            else:
                write_lines(files, lines)
    for lang in recipe.languages:
        (subword_folder / f"rest.{lang}").replace(subword_folder / f"train.{lang}")
    if not stats.kept:
        raise PrepError(f"the train set is empty: 0 of {stats.read} pairs were kept")


def write_subwords(
    recipe: Recipe, token_folder: Path, subword_folder: Path, out: Path, workers: int
) -> str:
    """Learn subwords on the training text of both languages and split all text into them.

    Returns the file name of the subword model in ``out``.
    """
    model = out / ("codes" if recipe.subwords == "bpe" else "spm.model")
    train = [token_folder / f"train.{lang}" for lang in recipe.languages]
    subwords.learn(recipe.subwords, train, recipe.size, model)
    for file in sorted(token_folder.iterdir()):
        arguments = (recipe.subwords, model)
        with (
            file.open(encoding="utf-8") as lines,
            (subword_folder / file.name).open("w", encoding="utf-8") as target,
        ):
            stripped = (line.rstrip("\n") for line in lines)
            bar = tqdm(stripped, desc=f"{file.name}: subwords", leave=False, disable=None)
            for line in map_chunks(subwords.applier, arguments, bar, workers):
                target.write(line + "\n")
    return model.name


def shard_folders(out: Path, shards: int) -> list[Path]:
    """Return the folders of the shards, which fairseq-train takes as ``a:b:c``."""
    return [out] if shards == 1 else [out / f"shard{number}" for number in range(shards)]


def split_training(recipe: Recipe, subword_folder: Path) -> list[Path]:
    """Distribute the training pairs over the shards in turn; return the prefix of each shard."""
    prefixes = [subword_folder / f"train{number}" for number in range(recipe.shards)]
    pairs = sum(1 for _ in parallel_lines(subword_folder / "train", recipe.languages))
    if pairs < recipe.shards:
        raise PrepError(f"--shards {recipe.shards}: there are only {pairs} training pairs")
    with contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(open_writers(prefix, recipe.languages)) for prefix in prefixes
        ]
        for number, lines in enumerate(parallel_lines(subword_folder / "train", recipe.languages)):
            write_lines(shards[number % recipe.shards], lines)
    return prefixes


def binarise(
    recipe: Recipe, subword_folder: Path, out: Path, splits: list[str], workers: int
) -> None:
    """Write what fairseq-preprocess writes, with a joined or separate dictionary for all shards."""
    groups = [[lang] for lang in recipe.languages] if recipe.separate else [recipe.languages]
    dictionaries: dict[str, Path] = {}
    for group in groups:
        dictionary = subword_folder / f"dict.{'-'.join(group)}.txt"
        build_dictionary([subword_folder / f"train.{lang}" for lang in group], dictionary, workers)
        dictionaries |= dict.fromkeys(group, dictionary)
    prefixes = {split: [subword_folder / split] for split in splits}
    if recipe.shards > 1:
        prefixes["train"] = split_training(recipe, subword_folder)
    pair = "-".join(recipe.languages)
    for number, folder in enumerate(shard_folders(out, recipe.shards)):
        # fairseq reads the validation and test sets only from the first folder.
        here = {split: paths[number] for split, paths in prefixes.items() if len(paths) > number}
        for lang in recipe.languages:
            texts = {split: path.with_name(f"{path.name}.{lang}") for split, path in here.items()}
            binarise_text(texts, folder, workers, dictionaries[lang], f".{pair}.{lang}")


def token_stats(recipe: Recipe, out: Path, split: str) -> dict[str, Any]:
    """Return the number of tokens per language in a split, and the share of unknown tokens."""
    tokens: dict[str, int] = {}
    unknown = 0
    for lang in recipe.languages:
        tokens[lang] = 0
        folders = shard_folders(out, recipe.shards)
        for folder in folders if split == "train" else folders[:1]:
            prefix = folder / f"{split}.{recipe.source_lang}-{recipe.target_lang}.{lang}"
            total, missing = count_tokens(prefix, folder / f"dict.{lang}.txt")
            tokens[lang] += total
            unknown += missing
    rate = unknown / max(1, sum(tokens.values()))
    return {"tokens": tokens, "unknown_rate": round(rate, 6)}


def prepare(
    corpus: dict[str, tuple[Pairs, Report]],
    recipe: Recipe,
    out: Path,
    workers: int,
    keep_text: bool = False,
) -> dict[str, Any]:
    """Run all steps, write the data to ``out`` and return the statistics for the manifest."""
    if recipe.subwords not in subwords.KINDS:
        raise PrepError(
            f"unknown kind of subwords {recipe.subwords!r}: use one of {', '.join(subwords.KINDS)}"
        )
    token_folder, subword_folder = out / "tokens", out / "cut"
    token_folder.mkdir()
    subword_folder.mkdir()
    stats = {
        split: write_tokens(split, pairs, recipe, token_folder, workers)
        for split, (pairs, _) in corpus.items()
    }
    if recipe.valid_every:
        stats["train"].kept, held_out = hold_out_valid(recipe, token_folder)
        stats["valid"] = SplitStats(read=held_out, kept=held_out)
    names = [split for split in SPLITS if split in stats]
    overlap = find_overlap(token_folder, names, recipe.languages, recipe.drop_leaked)
    if overlap.dropped:
        stats["train"].dropped["in a held-out set"] = overlap.dropped
        stats["train"].kept -= overlap.dropped
    model = None
    if recipe.subwords == "none":
        shutil.copytree(token_folder, subword_folder, dirs_exist_ok=True)
    else:
        model = write_subwords(recipe, token_folder, subword_folder, out, workers)
    if recipe.clean_on == "subwords":
        drop_by_subwords(recipe, subword_folder, stats["train"])
    binarise(recipe, subword_folder, out, names, workers)
    splits: dict[str, Any] = {}
    for split in names:
        report = corpus[split][1] if split in corpus else Report()
        stats[split].dropped.update(report.dropped)
        splits[split] = {
            "read": stats[split].read,
            "kept": stats[split].kept,
            "dropped": dict(stats[split].dropped),
            "mended": dict(report.repaired),
            "duplicates": overlap.duplicates[split],
            "seen_in_train": overlap.seen_in_train.get(split, 0),
            **token_stats(recipe, out, split),
        }
    if not keep_text:
        shutil.rmtree(token_folder)
        shutil.rmtree(subword_folder)
    first = shard_folders(out, recipe.shards)[0]
    sizes = {
        lang: len((first / f"dict.{lang}.txt").read_text("utf-8").splitlines())
        for lang in recipe.languages
    }
    vocabulary = sizes if recipe.separate else sizes[recipe.target_lang]
    return {"recipe": asdict(recipe), "splits": splits, "model": model, "vocabulary": vocabulary}


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the text that the script prints at the end."""
    lines = []
    for split, stats in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(stats["dropped"].items())) or "none"
        lines.append(f"{split}: {stats['kept']} pairs kept, dropped: {dropped}")
        notes = [f"repaired {n} lines ({problem})" for problem, n in stats["mended"].items()]
        if stats["duplicates"]:
            notes.append(f"{stats['duplicates']} duplicates (kept)")
        if stats["seen_in_train"]:
            notes.append(f"{stats['seen_in_train']} pairs that are also in train")
        counts = " and ".join(f"{n:,} {lang}" for lang, n in stats["tokens"].items())
        notes.append(f"{counts} tokens, {stats['unknown_rate']:.2%} unknown")
        lines.append(f"  {', '.join(notes)}")
    vocabulary = manifest["vocabulary"]
    if isinstance(vocabulary, dict):
        counts = ", ".join(f"{n} {lang}" for lang, n in vocabulary.items())
        lines.append(f"vocabularies: {counts} entries")
    else:
        lines.append(f"vocabulary: {vocabulary} entries, shared by both languages")
    folders = shard_folders(out, manifest["arguments"]["shards"])
    lines.append(f"train with: fairseq-train {shlex.quote(':'.join(map(str, folders)))}")
    return "\n".join(lines)
