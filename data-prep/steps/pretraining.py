"""Turn documents into the data of fairseq's masked_lm and language_modeling tasks."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import models, subwords
from steps.binary import binarise_text, build_dictionary, count_tokens, write_dictionary
from steps.documents import Document, SeenHashes, sentence_splitter, strip_lines
from steps.duplicates import fingerprint
from steps.errors import PrepError
from steps.lines import Report
from steps.packing import BlockPacker, Packer, SentencePacker
from steps.parallel import map_chunks
from steps.translation import shard_folders

Corpus = dict[str, tuple[Iterable[Document], Report]]  # by split; train comes first
FORMATS = ("sentence", "block")


@dataclass(frozen=True)
class Recipe:
    """The settings by which documents are converted to lines of subwords."""

    format: str = "sentence"
    block_tokens: int = 510  # RoBERTa's 512 without <s> and </s>
    split_sentences: bool = True
    subwords: str = "spm-unigram"
    size: int = 32_000
    # Share of the text's characters that sentencepiece's model must contain. With 1, the rare
    # characters of all scripts would fill the model.
    coverage: float = 0.9999
    shards: int = 1
    lowercase: bool = False
    min_chars: int = 1
    valid_share: float = 0.0  # share of the training documents
    keep_duplicates: bool = False


@dataclass
class SplitStats:
    """Numbers of documents, rows and dropped lines in one split."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    seen_in_train: int = 0
    rows: int = 0
    lost_lines: int = 0


def _select(
    corpus: Corpus, recipe: Recipe, stats_by_split: dict[str, SplitStats]
) -> Iterator[tuple[str, str]]:
    """Yield (split, line) for the lines of every kept document, and (split, "") at its end."""
    seen = SeenHashes()
    for source, (documents, _) in corpus.items():
        for document in documents:
            lines = strip_lines(document, recipe.lowercase)
            key = fingerprint(*lines)
            # The hash of the document decides, so the order of the documents does not matter.
            held_out = source == "train" and key < recipe.valid_share * 2**64
            split = "valid" if held_out else source
            stats = stats_by_split[split]
            stats.read += 1
            length = sum(map(len, lines))
            if length < recipe.min_chars:
                stats.dropped["too short" if length else "empty"] += 1
                continue
            if source != "train":
                # Validation and test documents that are also in train are counted but kept, because
                # results must cover the whole set.
                stats.seen_in_train += key in seen
            elif not seen.add(key):
                stats.duplicates += 1
                if not recipe.keep_duplicates:
                    stats.dropped["duplicate"] += 1
                    continue
            stats.kept += 1
            for line in lines:
                yield split, line
            yield split, ""


def write_text(corpus: Corpus, recipe: Recipe, folder: Path, workers: int) -> dict[str, SplitStats]:
    """Write one text file per split: one sentence per line, a blank line after every document."""
    # Called here once so that a missing library raises its error outside of a worker process.
    sentence_splitter(recipe.split_sentences)
    splits = list(dict.fromkeys(["train", "valid", *corpus]))
    stats_by_split = {split: SplitStats() for split in splits}
    with contextlib.ExitStack() as stack:
        files = {
            split: stack.enter_context((folder / split).open("w", encoding="utf-8"))
            for split in splits
        }
        selected = _select(corpus, recipe, stats_by_split)
        lines = map_chunks(sentence_splitter, (recipe.split_sentences,), selected, workers)
        for split, text in tqdm(lines, "splitting sentences", leave=False, disable=None):
            files[split].write(text + "\n")
    for split, stats in stats_by_split.items():
        needed = recipe.shards if split == "train" else 1
        if stats.kept < needed:
            limit = f", but {needed} shards need at least {needed}" if needed > 1 else ""
            hint = ": use --valid or a larger --valid-share" if split == "valid" else ""
            raise PrepError(
                f"the {split} set has {stats.kept} documents left of {stats.read}{limit}{hint}"
            )
    return stats_by_split


def subword_applier(kind: str, model: Path | None) -> Callable[[list[str]], list[str | None]]:
    """Return a function that splits lines into subwords and turns blank lines into None."""
    apply = subwords.applier(kind, model)

    def split(lines: list[str]) -> list[str | None]:
        pairs = zip(lines, apply(lines), strict=True)
        return [" ".join(subwords.plain_pieces(pieces)) if line else None for line, pieces in pairs]

    return split


def pack(
    text: Path, model: Path | None, recipe: Recipe, targets: list[Path], workers: int
) -> tuple[int, int]:
    """Split a text into subwords and distribute its documents over ``targets`` in turn.

    Returns the number of rows written and the number of lines without any subword.
    """
    lost = 0
    with text.open(encoding="utf-8") as lines, contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="utf-8")) for path in targets]
        packers: list[Packer] = [
            SentencePacker(file)
            if recipe.format == "sentence"
            else BlockPacker(file, recipe.block_tokens)
            for file in files
        ]
        stripped = (line.rstrip("\n") for line in lines)
        bar = tqdm(stripped, desc=f"{text.name}: subwords", leave=False, disable=None)
        current = 0
        for pieces in map_chunks(subword_applier, (recipe.subwords, model), bar, workers):
            if pieces is None:
                packers[current].end_document()
                current = (current + 1) % len(packers)
            elif pieces.strip():
                packers[current].line(pieces)
            else:
                lost += 1
        for packer in packers:
            packer.close()
    return sum(packer.rows for packer in packers), lost


def _dictionary(recipe: Recipe, model: Path | None, text: Path, folder: Path, workers: int) -> Path:
    """Return the path of the dictionary.

    It is the dict.txt of a ready-made model if there is one; else it lists all symbols of the
    subword model, or all words of the training text.
    """
    path = folder / "dict.txt"
    if model is not None and (model / "dict.txt").is_file():
        return model / "dict.txt"
    symbols = subwords.vocabulary(recipe.subwords, model)
    if symbols is None:
        build_dictionary([text], path, workers)
    else:
        write_dictionary(symbols, path)
    return path


def prepare(
    corpus: Corpus,
    recipe: Recipe,
    out: Path,
    workers: int,
    model_files: Sequence[Path] = (),
    keep_text: bool = False,
) -> dict[str, Any]:
    """Run all steps, write the data to ``out`` and return the statistics for the manifest."""
    text_folder, subword_folder = out / "text", out / "cut"
    text_folder.mkdir()
    subword_folder.mkdir()
    stats_by_split = write_text(corpus, recipe, text_folder, workers)
    name = subwords.model_name(recipe.subwords)
    model = None if name is None else out / name
    if model is not None and model_files:
        models.copy_model(model_files, model)
    elif model is not None:
        # By default sentencepiece ignores lines of more than 4,192 bytes.
        options = {"max_sentence_length": 1 << 16, "input_sentence_size": 1_000_000}
        options["character_coverage"] = recipe.coverage
        train = [text_folder / "train"]
        subwords.learn(recipe.subwords, train, recipe.size, model, **options)
    folders = shard_folders(out, recipe.shards)
    prefixes: list[dict[str, Path]] = [{} for _ in folders]
    for split, stats in stats_by_split.items():
        # fairseq reads the training data of epoch n from folder n, and all other data from the
        # first folder.
        count = len(folders) if split == "train" else 1
        for number in range(count):
            prefixes[number][split] = subword_folder / f"{split}{number}"
        targets = [prefixes[number][split] for number in range(count)]
        stats.rows, stats.lost_lines = pack(text_folder / split, model, recipe, targets, workers)
    dictionary = _dictionary(recipe, model, text_folder / "train", subword_folder, workers)
    for folder, texts in zip(folders, prefixes, strict=True):
        binarise_text(texts, folder, workers, dictionary)
    splits: dict[str, Any] = {}
    for split, stats in stats_by_split.items():
        report = corpus[split][1] if split in corpus else Report()
        counts = [
            count_tokens(folder / split, folder / "dict.txt")
            for folder in (folders if split == "train" else folders[:1])
        ]
        tokens, unknown = (sum(column) for column in zip(*counts, strict=True))
        splits[split] = {
            **vars(stats),
            "dropped": dict(stats.dropped),
            "mended": dict(report.repaired),
            "lines_dropped": dict(report.dropped),
            "tokens": tokens,
            "unknown_rate": round(unknown / max(1, tokens), 6),
        }
    rate = splits["train"]["unknown_rate"]
    if model_files and rate > 0.5:
        raise PrepError(
            f"{model_files[0].parent}: its dict.txt does not belong to its tokenizer: "
            f"{rate:.0%} of the subwords are unknown"
        )
    if not keep_text:
        shutil.rmtree(text_folder)
        shutil.rmtree(subword_folder)
    vocabulary = len((folders[0] / "dict.txt").read_text("utf-8").splitlines())
    flags = models.raw_text_flags(recipe.subwords, name, model)
    return {"recipe": asdict(recipe), "splits": splits, "vocabulary": vocabulary, "flags": flags}


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the text that the script prints at the end."""
    recipe = manifest["arguments"]
    rows = "sentences" if recipe["format"] == "sentence" else "blocks"
    lines = []
    for split, stats in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(stats["dropped"].items())) or "none"
        lines.append(f"{split}: {stats['kept']:,} documents kept, dropped: {dropped}")
        notes = [f"{stats['rows']:,} {rows}", f"{stats['tokens']:,} tokens"]
        notes.append(f"{stats['unknown_rate']:.2%} unknown")
        notes += [f"dropped {n} lines ({why})" for why, n in stats["lines_dropped"].items()]
        notes += [f"repaired: {n} × {problem}" for problem, n in stats["mended"].items()]
        if stats["lost_lines"]:
            notes.append(f"dropped {stats['lost_lines']} lines (no subword)")
        if recipe["keep_duplicates"] and stats["duplicates"]:
            notes.append(f"{stats['duplicates']} duplicates (kept)")
        if stats["seen_in_train"]:
            notes.append(f"{stats['seen_in_train']} documents that are also in the training files")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']:,} entries")
    if manifest["flags"]:
        flags = manifest["flags"].replace("{out}", str(out))
        lines.append(f"fairseq's flags to split raw text in the same way: {flags}")
    data = shlex.quote(":".join(map(str, shard_folders(out, recipe["shards"]))))
    if recipe["format"] == "sentence":
        samples = "--sample-break-mode complete --tokens-per-sample 512"
    else:
        length = recipe["block_tokens"] + 2
        samples = f"--sample-break-mode eos --tokens-per-sample {length}"
    lines.append(
        f"train with: fairseq-train {data} --task masked_lm --criterion masked_lm {samples}"
    )
    lines.append(f"        or: fairseq-train {data} --task language_modeling {samples}")
    return "\n".join(lines)
