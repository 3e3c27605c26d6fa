"""The flags that the scripts for documents share, and the function that builds their output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steps import models, pretraining, subwords
from steps.command import OneLineParser, build_output, common_parser, positive_int
from steps.errors import PrepError
from steps.manifest import distinct_names
from steps.pretraining import FORMATS, Corpus, Recipe


def parser_for(documentation: str, downloads: bool) -> OneLineParser:
    """Return a parser with the flags of all corpora of running text."""
    defaults = Recipe()
    parser = common_parser(documentation, downloads)
    add = parser.add_argument
    add(
        "--format",
        choices=FORMATS,
        default=defaults.format,
        help="sentence: one sentence per line, blank lines between documents; block: lines of "
        "--block-tokens subwords across sentences and documents; default: %(default)s",
    )
    add(
        "--block-tokens",
        type=positive_int,
        default=defaults.block_tokens,
        help="number of subwords per line with --format block, default: %(default)s",
    )
    add(
        "--split-sentences",
        action=argparse.BooleanOptionalAction,
        default=defaults.split_sentences,
        help="split lines into sentences; with --no-split-sentences each line is one sentence; "
        "--format block never splits",
    )
    add(
        "--subwords",
        choices=subwords.PRETRAINING_KINDS,
        default=defaults.subwords,
        help="kind of subwords: sentencepiece (spm), GPT-2's byte-level BPE, the tokenizer of a "
        "pretrained model (see --tokenizer), or none for whole words; default: %(default)s",
    )
    add(
        "--size",
        type=positive_int,
        default=defaults.size,
        help="vocabulary size of the subword model to learn, default: %(default)s",
    )
    add(
        "--coverage",
        type=float,
        default=defaults.coverage,
        help="share of the characters of the text that the sentencepiece model must contain, "
        "default: %(default)s",
    )
    add(
        "--gpt2-files",
        type=Path,
        metavar="FOLDER",
        help="with --subwords gpt2: use the encoder.json, vocab.bpe and (if present) dict.txt in "
        "this folder instead of learning",
    )
    add(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="with --subwords tokenizer: folder of a pretrained model with its tokenizer and (if "
        "present) its dict.txt",
    )
    add(
        "--shards",
        type=positive_int,
        default=1,
        help="number of shards of the training data; fairseq reads one per epoch; "
        "default: %(default)s",
    )
    add("--lowercase", action="store_true", help="convert the text to lower case")
    add(
        "--min-chars",
        type=positive_int,
        default=1,
        help="drop documents with fewer characters, default: %(default)s",
    )
    add(
        "--valid-share",
        type=fraction,
        help="share of the training documents that becomes the validation set, default: 0.01",
    )
    add(
        "--keep-duplicates",
        action="store_true",
        help="keep training documents that occur more than once",
    )
    return parser


def fraction(text: str) -> float:
    """Parse a number between 0 and 1, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, got {text!r}")
    return number


def prepare_documents(
    args: argparse.Namespace,
    files: dict[str, Sequence[Path]],
    read: Callable[[], Corpus],
    **corpus_arguments: Any,
) -> None:
    """Create the output folder of a corpus of documents and print a summary.

    ``files`` are the source files by split. ``corpus_arguments`` are recorded in the manifest
    together with the common arguments.
    """
    if "valid" in files and args.valid_share is not None:
        raise PrepError("--valid-share and --valid cannot be used together: choose one")
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
    model_files = models.ready_made_files(args.subwords, args.gpt2_files, args.tokenizer)
    sources = [*(path for paths in files.values() for path in paths), *model_files]
    names = {split: distinct_names(paths) for split, paths in files.items()}

    def build(folder: Path) -> dict[str, Any]:
        return pretraining.prepare(
            read(), recipe, folder, args.workers, model_files, args.keep_text
        )

    # The manifest records which file belongs to which split, because exchanging two files matters.
    arguments = {
        **asdict(recipe),
        **corpus_arguments,
        "files": names,
        "given_model": bool(model_files),
    }
    build_output(args, arguments, sources, build, pretraining.summary)
