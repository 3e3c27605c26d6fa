"""The command line that the scripts for fine-tuning sets share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from steps import finetuning, subwords
from steps.command import OneLineParser, common_parser, make, positive, sources
from steps.errors import PrepError
from steps.examples import Example, Shape
from steps.fetch import Remote
from steps.finetuning import Encoding
from steps.lines import Report, TextFile
from steps.manifest import read_manifest
from steps.models import TOKENIZER_FILES
from steps.tables import Table
from steps.translation import shard_folders

SPM_FILES = ("spm.model", "sentencepiece.bpe.model")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json")


def parser_for(documentation: str, downloads: bool = True) -> OneLineParser:
    """The arguments every fine-tuning set has; without ``downloads``, --from must be given."""
    parser = common_parser(documentation.splitlines()[0], downloads)
    if not downloads:
        parser.add_argument(
            "--from", dest="origin", type=Path, required=True, help="folder with the corpus' files"
        )
    parser.add_argument(
        "--subwords", choices=subwords.PRETRAINING_KINDS, default="spm-unigram", help="to learn"
    )
    parser.add_argument("--size", type=positive, default=8_000, help="pieces, default: %(default)s")
    parser.add_argument(
        "--model-from",
        type=Path,
        help="folder of a pretrained model or its data: use its subwords and its dict.txt",
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=510, help="longer single texts are cut there"
    )
    parser.add_argument(
        "--lowercase", action="store_true", help="on by itself where --model-from had it on"
    )
    return parser


def encoding_of(args: argparse.Namespace) -> Encoding:
    """The subwords that the arguments ask for."""
    folder: Path | None = args.model_from
    if folder is None:
        if args.subwords == "tokenizer":
            raise PrepError(
                "--subwords tokenizer needs the tokenizer's folder: --model-from FOLDER"
            )
        return Encoding(args.subwords, args.size, args.max_tokens, lowercase=args.lowercase)
    # The data of a pretrained model (perhaps in shards), or that of another fine-tuning set.
    places = (folder, *shard_folders(folder, 2)[:1], folder / "input0")
    found = [place / "dict.txt" for place in places if (place / "dict.txt").is_file()]
    if not found:
        raise PrepError(f"{folder / 'dict.txt'} does not exist: --model-from needs it")
    manifest = read_manifest(folder)
    manifest = manifest if isinstance(manifest, dict) else {}
    recipe, model = manifest.get("recipe", {}), manifest.get("model", {})
    flags = model.get("flags", Encoding.model_flags)
    if (folder / "model.pt").is_file():
        flags += f" --finetune-from-model {folder / 'model.pt'}"
    words = "none" in (args.subwords, recipe.get("subwords"))
    kind, files = ("none", []) if words else given_model(folder)
    return Encoding(
        kind,
        args.size,
        args.max_tokens,
        model=files[0] if files else None,
        files=tuple(files) if kind in ("gpt2", "tokenizer") else (),
        dictionary=found[0],
        lowercase=args.lowercase or recipe.get("lowercase", False),
        model_flags=flags,
        two_separators=model.get("two_separators", Encoding.two_separators),
    )


def given_model(folder: Path) -> tuple[str, list[Path]]:
    """Kind and files of the subword model in a folder, or in its folder ``gpt2``, ``tokenizer``."""
    for name in SPM_FILES:
        if (folder / name).is_file():
            return "spm-unigram", [folder / name]
    for place in (folder / "gpt2", folder):
        files = [place / name for name in subwords.GPT2_FILES]
        if all(file.is_file() for file in files):
            return "gpt2", files
    for place in (folder / "tokenizer", folder):
        if any((place / name).is_file() for name in TOKENIZERS):
            files = [place / name for name in TOKENIZER_FILES if name != "dict.txt"]
            return "tokenizer", [file for file in files if file.is_file()]
    raise PrepError(f"{folder} has no spm.model, gpt2/, encoder.json with vocab.bpe or tokenizer/")


def first_of(folder: Path, names: Iterable[str]) -> Path:
    """The file that goes by one of these names."""
    names = list(names)
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise PrepError(f"{folder} has none of: {', '.join(names)}")
    return found


def prepare_corpus(
    args: argparse.Namespace,
    shape: Shape,
    files: Sequence[Path],
    tables: dict[str, Table],
    example: Callable[[Any], Example | str],
    **choices: Any,
) -> None:
    """Make the output and print what became of the corpus; ``choices`` of the script decide it."""
    encoding = encoding_of(args)
    arguments = {
        **asdict(shape),
        "labels": list(shape.labels),
        "splits": list(tables),
        "subwords": encoding.kind,
        "size": args.size if encoding.dictionary is None else None,
        "max_tokens": args.max_tokens,
        "lowercase": encoding.lowercase,
        **choices,
    }
    model = [x for x in (encoding.model, *encoding.files, encoding.dictionary) if x is not None]

    def build(folder: Path) -> dict[str, Any]:
        return finetuning.prepare(
            tables, example, shape, encoding, folder, args.workers, args.keep_text
        )

    make(args, arguments, [*files, *model], build, finetuning.summary)


def remotes_at(address: str, **files: tuple[str, str]) -> dict[str, Remote]:
    """The files of the splits at one address: (name, checksum) by split."""
    return {split: Remote(f"{address}/{name}", sum_) for split, (name, sum_) in files.items()}


def prepare_files(
    documentation: str,
    argv: Sequence[str] | None,
    shape: Shape,
    remotes: dict[str, Remote],
    read: Callable[[TextFile, Report], Iterable[Any]],
    example: Callable[[Any], Example | str],
) -> None:
    """All of a script whose corpus is one file a split."""
    args = parser_for(documentation).parse_args(argv)
    files = sources(list(remotes.values()), args)
    tables = {split: partial(read, TextFile(files[r.name])) for split, r in remotes.items()}
    prepare_corpus(args, shape, list(files.values()), tables, example)


def prepare_archive(
    documentation: str,
    argv: Sequence[str] | None,
    shape: Shape,
    remote: Remote,
    members: dict[str, str],
    read: Callable[[TextFile, Report], Iterable[Any]],
    example: Callable[[Any], Example | str],
) -> None:
    """All of a script whose corpus is one archive with a member a split."""
    args = parser_for(documentation).parse_args(argv)
    archive = sources([remote], args)[remote.name]
    tables = {split: partial(read, TextFile(archive, name)) for split, name in members.items()}
    prepare_corpus(args, shape, [archive], tables, example)
