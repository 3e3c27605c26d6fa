"""Functions that all corpus scripts share: common flags, source files and one-line errors."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from fairseq_stochattn.core.json_input import short
from steps import subwords, translation
from steps.errors import PrepError
from steps.fetch import Remote, fetch
from steps.lines import Report
from steps.manifest import NAME as MANIFEST
from steps.manifest import make_output
from steps.parallel import usable_cores

# The packages of the extra [data] in setup.py, which not every installation has.
DATA_PACKAGES = ("sentencepiece", "sacremoses", "subword_nmt", "tokenizers", "syntok", "scipy")


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that prints errors as one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def common_parser(documentation: str, downloads: bool) -> OneLineParser:
    """Return a parser with the flags of all scripts; --help begins with ``documentation``.

    ``downloads`` adds the flags of corpora that can be downloaded.
    """
    parser = OneLineParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="output folder for the binarised data"
    )
    if downloads:
        parser.add_argument(
            "--from",
            dest="origin",
            type=Path,
            help="folder that already contains the files of the corpus; without it they are "
            "downloaded",
        )
        parser.add_argument(
            "--downloads",
            type=Path,
            default=Path("downloads"),
            help="folder for downloaded files, default: %(default)s",
        )
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=usable_cores(),
        help="number of worker processes, default: one per CPU core",
    )
    parser.add_argument(
        "--keep-text",
        action="store_true",
        help="also keep the tokenised text and the subwords as text files",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace the output folder if it was made with other arguments or source files, or "
        "if it is damaged",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the checksums of an existing output with its manifest; file sizes are "
        "always compared",
    )
    return parser


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return number


def ratio(text: str) -> float:
    """Parse a length ratio, for argparse: 0 (no limit) or a number of at least 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number == 0 or 1 <= number < math.inf):
        raise argparse.ArgumentTypeError(f"must be 0 or a number of at least 1, got {text!r}")
    return number


def parser_for(documentation: str, defaults: translation.Recipe, downloads: bool) -> OneLineParser:
    """Return a parser with the flags of all translation corpora."""
    parser = common_parser(documentation, downloads)
    parser.add_argument(
        "--subwords",
        choices=subwords.KINDS,
        default=defaults.subwords,
        help="kind of subwords to learn on the training text of both languages: BPE by "
        "subword-nmt, sentencepiece (spm), or none for whole words; default: %(default)s",
    )
    parser.add_argument(
        "--size",
        type=positive_int,
        default=defaults.size,
        help="number of BPE merges or sentencepiece pieces, default: %(default)s",
    )
    parser.add_argument(
        "--max-tokens",
        type=positive_int,
        default=defaults.max_tokens,
        help="drop training pairs with more tokens than this on either side, default: %(default)s",
    )
    parser.add_argument(
        "--ratio",
        type=ratio,
        default=defaults.ratio,
        help="drop training pairs in which one side is longer than the other by more than this "
        "factor; 0 drops none; default: %(default)s",
    )
    parser.add_argument(
        "--drop-leaked",
        action="store_true",
        help="drop training pairs that also occur in the validation or test set",
    )
    parser.add_argument(
        "--first",
        type=positive_int,
        default=0,
        metavar="N",
        help="use only the first N training pairs, counted before any are dropped; default: all",
    )
    parser.add_argument(
        "--separate-dictionaries",
        action="store_true",
        help="one dictionary per language; by default both languages share one, which "
        "--share-all-embeddings needs",
    )
    parser.add_argument(
        "--shards",
        type=positive_int,
        default=1,
        help="number of shards of the training data; fairseq reads one per epoch; "
        "default: %(default)s",
    )
    return parser


def recipe_of(
    args: argparse.Namespace, source_lang: str, target_lang: str, **other: Any
) -> translation.Recipe:
    """Return the recipe that the common flags describe; ``other`` sets its remaining fields."""
    return translation.Recipe(
        source_lang,
        target_lang,
        subwords=args.subwords,
        size=args.size,
        max_tokens=args.max_tokens,
        ratio=args.ratio,
        drop_leaked=args.drop_leaked,
        shards=args.shards,
        first=args.first,
        separate=args.separate_dictionaries,
        **other,
    )


def source_files(remotes: Sequence[Remote], args: argparse.Namespace) -> dict[str, Path]:
    """Return the path of every file of the corpus, by name: in --from, or downloaded."""
    if args.origin is None:
        return {remote.name: fetch(remote, args.downloads) for remote in remotes}
    paths = {remote.name: args.origin / remote.name for remote in remotes}
    for path in paths.values():
        if not path.is_file():
            raise PrepError(f"{path} does not exist")
    return paths


def build_output(
    args: argparse.Namespace,
    arguments: dict[str, Any],
    files: Sequence[Path],
    build: Callable[[Path], dict[str, Any]],
    summary: Callable[[dict[str, Any], Path], str],
) -> None:
    """Create the output folder unless it already exists, and print a summary.

    ``arguments`` are the arguments that determine the output. ``build`` fills a folder and returns
    statistics for the manifest. ``summary`` formats the manifest for the user.
    """
    all_arguments = {**arguments, "keep_text": args.keep_text}
    manifest = make_output(args.out, all_arguments, files, build, args.force, args.verify)
    if manifest["fresh"]:
        print(summary(manifest, args.out))
        return
    text = existing_summary(manifest, args.out, summary)
    print(f"{args.out} is already complete, nothing to do")
    print(text)


def existing_summary(
    manifest: dict[str, Any], out: Path, summary: Callable[[dict[str, Any], Path], str]
) -> str:
    """Return the summary of a manifest that was read from a file, which may be damaged."""
    try:
        return summary(manifest, out)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PrepError(
            f"{out / MANIFEST} is damaged: its statistics cannot be read "
            f"({type(error).__name__}: {short(str(error))}); make it again with --force"
        ) from None


def prepare_translation(
    args: argparse.Namespace,
    recipe: translation.Recipe,
    files: Sequence[Path],
    read: Callable[[], dict[str, tuple[translation.Pairs, Report]]],
) -> None:
    """Create the output folder of a parallel corpus and print a summary."""

    def build(folder: Path) -> dict[str, Any]:
        return translation.prepare(read(), recipe, folder, args.workers, args.keep_text)

    arguments = asdict(recipe)
    for name in ("first", "separate"):
        if not arguments[name]:  # outputs from before these settings existed are still recognised
            del arguments[name]
    build_output(args, arguments, files, build, translation.summary)


def main_of(run: Callable[[Sequence[str] | None], None]) -> Callable[..., int]:
    """Return a ``main`` that calls ``run`` and prints its errors as one line."""

    def main(argv: Sequence[str] | None = None) -> int:
        try:
            run(argv)
        except PrepError as error:
            return _fail(str(error))
        except ModuleNotFoundError as error:
            if error.name not in DATA_PACKAGES:
                raise
            return _fail(f"{error.name} is not installed: pip install 'fairseq_stochattn[data]'")
        except KeyboardInterrupt:
            print("\nstopped; run again to start from the beginning", file=sys.stderr)
            return 130
        return 0

    return main


def _fail(message: str) -> int:
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return 1
