"""The flags that the scripts for fine-tuning sets share, and functions that build their output."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from steps import finetuning, subwords
from steps.binary import check_dictionary
from steps.command import OneLineParser, build_output, common_parser, positive_int, source_files
from steps.errors import PrepError
from steps.examples import Example, TaskSpec
from steps.fetch import Remote
from steps.finetuning import Encoding
from steps.lines import Report, TextFile
from steps.manifest import NAME as MANIFEST
from steps.manifest import read_manifest
from steps.models import TOKENIZER_FILES
from steps.tables import Table, halve_valid
from steps.translation import shard_folders

SPM_FILES = ("spm.model", "sentencepiece.bpe.model")
SHORTEST = 6  # the longest set of special tokens, and one subword of each text
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json", subwords.ALBERT_FILE)


def parser_for(documentation: str, downloads: bool = True) -> OneLineParser:
    """Return a parser with the flags of all fine-tuning sets.

    Without ``downloads`` the corpus cannot be downloaded, so --from is required.
    """
    parser = common_parser(documentation, downloads)
    if not downloads:
        parser.add_argument(
            "--from",
            dest="origin",
            type=Path,
            required=True,
            help="folder that contains the files of the corpus",
        )
    parser.add_argument(
        "--subwords",
        choices=subwords.FINETUNING_KINDS,
        default="spm-unigram",
        help="kind of subwords to learn: sentencepiece (spm), GPT-2's byte-level BPE, or whole "
        "words: none splits at spaces only, words also separates punctuation (Moses), as word "
        "vectors need it; with --model-from only none and words have an effect; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--size",
        type=positive_int,
        default=8_000,
        help="vocabulary size of the subword model to learn, default: %(default)s",
    )
    parser.add_argument(
        "--model-from",
        type=Path,
        metavar="FOLDER",
        help="folder of a pretrained model, or of data prepared earlier: use its subword model and "
        "its dict.txt instead of learning",
    )
    parser.add_argument(
        "--max-tokens",
        type=positive_int,
        default=510,
        help="truncate single texts to this number of subwords, and pairs so that they are not "
        "longer than such a text with its two special tokens; default: %(default)s",
    )
    parser.add_argument(
        "--max-length",
        type=positive_int,
        metavar="N",
        help="truncate examples to N tokens with all special tokens, as papers count (such as 128);"
        " in a pair, the longer text first; default: --max-tokens plus 2",
    )
    parser.add_argument(
        "--halve",
        action="store_true",
        help="split the development set into a validation set, its rows 1, 3, 5 …, and a test set, "
        "its rows 2, 4, 6 …; the test set of the corpus is left out",
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="convert the text to lower case; implied if the data of --model-from is lower-cased",
    )
    return parser


def encoding_of(args: argparse.Namespace) -> Encoding:
    """Return the subword model that the flags select."""
    folder: Path | None = args.model_from
    if args.max_length is not None:
        if args.max_length < SHORTEST:
            raise PrepError(f"--max-length {args.max_length}: must be at least {SHORTEST}")
        args.max_tokens = args.max_length - 2
    if folder is None:
        if args.subwords == "tokenizer":
            raise PrepError(
                "--subwords tokenizer needs the folder of the tokenizer: --model-from FOLDER"
            )
        return Encoding(args.subwords, args.size, args.max_tokens, lowercase=args.lowercase)
    # The folder may contain pretraining data, possibly in shards, or another fine-tuning set.
    places = (folder, *shard_folders(folder, 2)[:1], folder / "input0")
    dictionaries = [place / "dict.txt" for place in places if (place / "dict.txt").is_file()]
    if not dictionaries:
        raise PrepError(f"{folder / 'dict.txt'} does not exist: --model-from needs it")
    check_dictionary(dictionaries[0])
    recipe, model = _recorded(folder, "recipe"), _recorded(folder, "model")
    flags = model.get("flags", Encoding.model_flags)
    if (folder / "model.pt").is_file():
        flags += f" --finetune-from-model {shlex.quote(str(folder / 'model.pt'))}"
    whole = [x for x in (args.subwords, recipe.get("subwords")) if x in subwords.WHOLE_WORDS]
    kind, files = (whole[0], []) if whole else find_model(folder)
    return Encoding(
        kind,
        args.size,
        args.max_tokens,
        model=files[0] if files else None,
        files=tuple(files) if kind in ("gpt2", "tokenizer") else (),
        dictionary=dictionaries[0],
        lowercase=args.lowercase or recipe.get("lowercase", False),
        model_flags=flags,
        two_separators=model.get("two_separators", Encoding.two_separators),
    )


# The types of what ``encoding_of`` reads from the manifest of a model or of prepared data.
_RECORDED = {
    "recipe": {"subwords": str, "lowercase": bool},
    "model": {"flags": str, "two_separators": bool},
}


def _recorded(folder: Path, part: str) -> dict[str, Any]:
    """Return a part of the manifest in the folder; empty if there is none."""
    found = (read_manifest(folder) or {}).get(part)
    if not isinstance(found, dict):
        # In the data of translation models, "model" is the name of a file.
        return {}
    for name, kind in _RECORDED[part].items():
        if name in found and not isinstance(found[name], kind):
            raise PrepError(f"{folder / MANIFEST}: {name} in {part} has the wrong type")
    return found


def find_model(folder: Path) -> tuple[str, list[Path]]:
    """Return kind and files of the subword model in FOLDER, FOLDER/gpt2 or FOLDER/tokenizer."""
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
    raise PrepError(
        f"{folder} has no subword model: looked for spm.model, gpt2/, "
        "encoder.json with vocab.bpe, and tokenizer/"
    )


def first_existing(folder: Path, names: Iterable[str]) -> Path:
    """Return the first of the named files that exists in the folder."""
    names = list(names)
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise PrepError(f"{folder} has none of: {', '.join(names)}")
    return path


def prepare_corpus(
    args: argparse.Namespace,
    spec: TaskSpec,
    files: Sequence[Path],
    tables: dict[str, Table],
    convert: Callable[[Any], Example | str],
    **corpus_arguments: Any,
) -> None:
    """Create the output folder of a labelled corpus and print a summary.

    ``corpus_arguments`` are recorded in the manifest together with the common arguments.
    """
    encoding = encoding_of(args)
    if args.halve:
        # Recorded only where it is used: outputs of before are still recognised.
        tables, corpus_arguments["halve"] = halve_valid(tables), True
    arguments = {
        **asdict(spec),
        "labels": list(spec.labels),
        "splits": list(tables),
        "subwords": encoding.kind,
        "size": args.size if encoding.dictionary is None else None,
        "max_tokens": args.max_tokens,
        "lowercase": encoding.lowercase,
        **corpus_arguments,
    }
    if not spec.keep_end:
        del arguments["keep_end"]  # outputs of earlier versions are still recognised
    model = [x for x in (encoding.model, *encoding.files, encoding.dictionary) if x is not None]

    def build(folder: Path) -> dict[str, Any]:
        return finetuning.prepare(
            tables, convert, spec, encoding, folder, args.workers, args.keep_text
        )

    build_output(args, arguments, [*files, *model], build, finetuning.summary)


def remotes_at(address: str, **files: tuple[str, str]) -> dict[str, Remote]:
    """Return the files of the splits at one address; each is given as (name, checksum)."""
    return {split: Remote(f"{address}/{name}", sum_) for split, (name, sum_) in files.items()}


def prepare_files(
    documentation: str,
    argv: Sequence[str] | None,
    spec: TaskSpec,
    remotes: dict[str, Remote],
    read: Callable[[TextFile, Report], Iterable[Any]],
    convert: Callable[[Any], Example | str],
) -> None:
    """Run a whole script for a corpus with one file per split."""
    args = parser_for(documentation).parse_args(argv)
    files = source_files(list(remotes.values()), args)
    tables = {split: partial(read, TextFile(files[r.name])) for split, r in remotes.items()}
    prepare_corpus(args, spec, list(files.values()), tables, convert)


def prepare_archive(
    documentation: str,
    argv: Sequence[str] | None,
    spec: TaskSpec,
    remote: Remote,
    members: dict[str, str],
    read: Callable[[TextFile, Report], Iterable[Any]],
    convert: Callable[[Any], Example | str],
) -> None:
    """Run a whole script for a corpus that is one archive with one member per split."""
    args = parser_for(documentation).parse_args(argv)
    archive = source_files([remote], args)[remote.name]
    tables = {split: partial(read, TextFile(archive, name)) for split, name in members.items()}
    prepare_corpus(args, spec, [archive], tables, convert)
