"""Running text from documents to the data of fairseq's masked_lm and language_modeling tasks."""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import models, subwords
from steps.binary import binarise_text, build_dictionary, count_tokens, write_dictionary
from steps.command import OneLineParser, common_parser, make, positive
from steps.documents import Document, Seen, sentence_splitter, tidy
from steps.duplicates import fingerprint
from steps.errors import PrepError
from steps.lines import Report
from steps.manifest import distinct_names
from steps.packing import Blocks, Packer, Sentences
from steps.parallel import map_chunks
from steps.translation import shard_folders

Corpus = dict[str, tuple[Iterable[Document], Report]]  # train first
FORMATS = ("sentence", "block")


@dataclass(frozen=True)
class Recipe:
    """How documents become lines of subwords."""

    format: str = "sentence"
    block_tokens: int = 510  # with <s> and </s> the 512 of RoBERTa
    split_sentences: bool = True
    subwords: str = "spm-unigram"
    size: int = 32_000
    coverage: float = 0.9999  # of the characters; those of all the world's scripts would fill it
    shards: int = 1
    lowercase: bool = False
    min_chars: int = 1
    valid_share: float = 0.0  # of the training documents
    keep_duplicates: bool = False


@dataclass
class Figures:
    """What became of the documents of one split."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    seen_in_train: int = 0
    rows: int = 0
    lost_lines: int = 0


def parser_for(description: str, downloads: bool) -> OneLineParser:
    """The arguments every corpus of running text has."""
    defaults = Recipe()
    parser = common_parser(description, downloads)
    add = parser.add_argument
    add("--format", choices=FORMATS, default=defaults.format, help="default: %(default)s")
    add("--block-tokens", type=positive, default=defaults.block_tokens, help="with --format block")
    add(
        "--split-sentences",
        action=argparse.BooleanOptionalAction,
        default=defaults.split_sentences,
        help="off: a line is a sentence; blocks need no sentences, they take lines as they are",
    )
    add("--subwords", choices=subwords.PRETRAINING_KINDS, default=defaults.subwords)
    add("--size", type=positive, default=defaults.size, help="pieces to learn")
    add(
        "--coverage",
        type=float,
        default=defaults.coverage,
        help="share of the characters that spm knows, default: %(default)s",
    )
    add("--gpt2-files", type=Path, help="folder with encoder.json, vocab.bpe, perhaps dict.txt")
    add("--tokenizer", type=Path, help="folder of a model, with its tokenizer, perhaps dict.txt")
    add("--shards", type=positive, default=1, help="parts of the training data")
    add("--lowercase", action="store_true")
    add("--min-chars", type=positive, default=1, help="shorter documents go")
    add("--valid-share", type=share, help="of the documents become the valid set, default: 0.01")
    add("--keep-duplicates", action="store_true", help="documents that occur twice stay")
    return parser


def share(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return number


def prepare_documents(
    args: argparse.Namespace,
    files: dict[str, Sequence[Path]],
    read: Callable[[], Corpus],
    **more: Any,
) -> None:
    """``make`` for running text; ``files`` of every split, ``more`` arguments of the corpus."""
    if "valid" in files and args.valid_share is not None:
        raise PrepError("--valid-share and --valid exclude each other")
    recipe = Recipe(
        format=args.format,
        block_tokens=args.block_tokens,
        split_sentences=args.split_sentences and args.format == "sentence",
        subwords=args.subwords,
        size=args.size,
        coverage=args.coverage,
        shards=args.shards,
        lowercase=args.lowercase,
        min_chars=args.min_chars,
        valid_share=0.0 if "valid" in files else args.valid_share or 0.01,
        keep_duplicates=args.keep_duplicates,
    )
    given = models.given_files(args.subwords, args.gpt2_files, args.tokenizer)
    everything = [*(path for paths in files.values() for path in paths), *given]
    names = {split: distinct_names(paths) for split, paths in files.items()}

    def build(folder: Path) -> dict[str, Any]:
        return prepare(read(), recipe, folder, args.workers, given, args.keep_text)

    # The sources' names in order: the same files in other roles are another corpus.
    decisive = {**asdict(recipe), **more, "files": names, "given_model": bool(given)}
    make(args, decisive, everything, build, summary)


def _chosen(corpus: Corpus, recipe: Recipe, found: dict[str, Figures]) -> Iterator[tuple[str, str]]:
    """(split, line) of every document that stays, and (split, "") behind its last line."""
    seen = Seen()
    for source, (documents, _) in corpus.items():
        for document in documents:
            lines = tidy(document, recipe.lowercase)
            key = fingerprint(*lines)
            # By the hash: the same document lands in the same set, in whatever order they come.
            held_out = source == "train" and key < recipe.valid_share * 2**64
            split = "valid" if held_out else source
            figures = found[split]
            figures.read += 1
            length = sum(map(len, lines))
            if length < recipe.min_chars:
                figures.dropped["too short" if length else "empty"] += 1
                continue
            if source != "train":
                # Held-out files are judged on all they have: nothing in them is dropped.
                figures.seen_in_train += key in seen
            elif not seen.add(key):
                figures.duplicates += 1
                if not recipe.keep_duplicates:
                    figures.dropped["duplicate"] += 1
                    continue
            figures.kept += 1
            for line in lines:
                yield split, line
            yield split, ""


def write_text(corpus: Corpus, recipe: Recipe, folder: Path, workers: int) -> dict[str, Figures]:
    """One text a split: a sentence (or line) a line, a blank line behind every document."""
    sentence_splitter(recipe.split_sentences)  # a missing library is an error here, not in a worker
    splits = list(dict.fromkeys(["train", "valid", *corpus]))
    found = {split: Figures() for split in splits}
    with contextlib.ExitStack() as stack:
        files = {
            split: stack.enter_context((folder / split).open("w", encoding="utf-8"))
            for split in splits
        }
        chosen = _chosen(corpus, recipe, found)
        work = map_chunks(sentence_splitter, (recipe.split_sentences,), chosen, workers)
        for split, text in tqdm(work, "lines of documents", leave=False, disable=None):
            files[split].write(text + "\n")
    for split, figures in found.items():
        needed = recipe.shards if split == "train" else 1
        if figures.kept < needed:
            more = f", {needed} shards need as many" if needed > 1 else ""
            hint = "; name more with --valid or a larger --valid-share" if split == "valid" else ""
            raise PrepError(
                f"the {split} set has {figures.kept} documents left of {figures.read}{more}{hint}"
            )
    return found


def cutter(kind: str, model: Path | None) -> Callable[[list[str]], list[str | None]]:
    """Subwords of lines; None for the blank line that ends a document."""
    cut = subwords.applier(kind, model)

    def work(lines: list[str]) -> list[str | None]:
        found = zip(lines, cut(lines), strict=True)
        return [" ".join(subwords.plain_pieces(pieces)) if line else None for line, pieces in found]

    return work


def pack(
    text: Path, model: Path | None, recipe: Recipe, targets: list[Path], workers: int
) -> tuple[int, int]:
    """Cut a text into subwords, its documents in turn to ``targets``; rows and lines lost."""
    lost = 0
    with text.open(encoding="utf-8") as lines, contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="utf-8")) for path in targets]
        packers: list[Packer] = [
            Sentences(file) if recipe.format == "sentence" else Blocks(file, recipe.block_tokens)
            for file in files
        ]
        bare = (line.rstrip("\n") for line in lines)
        bar = tqdm(bare, desc=f"{text.name}: subwords", leave=False, disable=None)
        turn = 0
        for pieces in map_chunks(cutter, (recipe.subwords, model), bar, workers):
            if pieces is None:
                packers[turn].end_document()
                turn = (turn + 1) % len(packers)
            elif pieces.strip():
                packers[turn].line(pieces)
            else:
                lost += 1
        for packer in packers:
            packer.close()
    return sum(packer.rows for packer in packers), lost


def _dictionary(recipe: Recipe, model: Path | None, text: Path, folder: Path, workers: int) -> Path:
    """The given model's, or all that the subwords can write, or the words of the training text."""
    path = folder / "dict.txt"
    if model is not None and (model / "dict.txt").is_file():
        return model / "dict.txt"
    known = subwords.vocabulary(recipe.subwords, model)
    if known is None:
        build_dictionary([text], path, workers)
    else:
        write_dictionary(known, path)
    return path


def prepare(
    corpus: Corpus,
    recipe: Recipe,
    out: Path,
    workers: int,
    given: Sequence[Path] = (),
    keep_text: bool = False,
) -> dict[str, Any]:
    """All steps into ``out``; returns the figures of the manifest."""
    text, cut = out / "text", out / "cut"
    text.mkdir()
    cut.mkdir()
    found = write_text(corpus, recipe, text, workers)
    name = subwords.model_name(recipe.subwords)
    model = None if name is None else out / name
    if model is not None and given:
        models.copy_given(given, model)
    elif model is not None:
        # Left to itself, sentencepiece does not look at lines of more than 4,192 bytes.
        options = {"max_sentence_length": 1 << 16, "input_sentence_size": 1_000_000}
        options["character_coverage"] = recipe.coverage
        subwords.learn(recipe.subwords, [text / "train"], recipe.size, model, **options)
    folders = shard_folders(out, recipe.shards)
    prefixes: list[dict[str, Path]] = [{} for _ in folders]
    for split, figures in found.items():
        # fairseq takes the training data of epoch n from folder n, all else from the first.
        count = len(folders) if split == "train" else 1
        for number in range(count):
            prefixes[number][split] = cut / f"{split}{number}"
        targets = [prefixes[number][split] for number in range(count)]
        figures.rows, figures.lost_lines = pack(text / split, model, recipe, targets, workers)
    dictionary = _dictionary(recipe, model, text / "train", cut, workers)
    for folder, texts in zip(folders, prefixes, strict=True):
        binarise_text(texts, folder, workers, dictionary)
    splits: dict[str, Any] = {}
    for split, figures in found.items():
        report = corpus[split][1] if split in corpus else Report()
        counts = [
            count_tokens(folder / split, folder / "dict.txt")
            for folder in (folders if split == "train" else folders[:1])
        ]
        tokens, unknown = (sum(column) for column in zip(*counts, strict=True))
        splits[split] = {
            **vars(figures),
            "dropped": dict(figures.dropped),
            "mended": dict(report.mended),
            "lines_dropped": dict(report.dropped),
            "tokens": tokens,
            "unknown_rate": round(unknown / max(1, tokens), 6),
        }
    rate = splits["train"]["unknown_rate"]
    if given and rate > 0.5:
        raise PrepError(f"{given[0].parent}: its dict.txt does not fit, {rate:.0%} is unknown")
    if not keep_text:
        shutil.rmtree(text)
        shutil.rmtree(cut)
    vocabulary = len((folders[0] / "dict.txt").read_text("utf-8").splitlines())
    flags = models.raw_text_flags(recipe.subwords, name, model)
    return {"recipe": asdict(recipe), "splits": splits, "vocabulary": vocabulary, "flags": flags}


def summary(manifest: dict[str, Any], out: Path) -> str:
    """What a user wants to read at the end."""
    recipe = manifest["recipe"]
    rows = "sentences" if recipe["format"] == "sentence" else "blocks"
    lines = []
    for split, figures in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(figures["dropped"].items())) or "none"
        lines.append(f"{split}: {figures['kept']:,} documents kept, dropped: {dropped}")
        notes = [f"{figures['rows']:,} {rows}", f"{figures['tokens']:,} tokens"]
        notes.append(f"{figures['unknown_rate']:.2%} unknown")
        notes += [f"{n} lines {why}, dropped" for why, n in figures["lines_dropped"].items()]
        notes += [f"mended: {n} {what}" for what, n in figures["mended"].items()]
        if figures["lost_lines"]:
            notes.append(f"{figures['lost_lines']} lines without any subword, dropped")
        if recipe["keep_duplicates"] and figures["duplicates"]:
            notes.append(f"{figures['duplicates']} duplicates (kept)")
        if figures["seen_in_train"]:
            notes.append(f"{figures['seen_in_train']} documents that are in the training files too")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']:,} entries")
    if manifest["flags"]:
        lines.append(f"raw text: {manifest['flags'].replace('{out}', str(out))}")
    data = ":".join(map(str, shard_folders(out, recipe["shards"])))
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
