"""What the prepare_* scripts have in common: arguments, sources, one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from steps import subwords, translation
from steps.errors import PrepError
from steps.fetch import Remote, fetch
from steps.lines import Report
from steps.manifest import make_output
from steps.parallel import usable_cores


class OneLineParser(argparse.ArgumentParser):
    """Errors are one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def common_parser(description: str, downloads: bool) -> OneLineParser:
    """The arguments every script has; ``downloads`` where the corpus has an address."""
    parser = OneLineParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder for the binarised data")
    if downloads:
        parser.add_argument(
            "--from", dest="origin", type=Path, help="folder with the corpus' files: no download"
        )
        parser.add_argument(
            "--downloads", type=Path, default=Path("downloads"), help="default: %(default)s"
        )
    parser.add_argument(
        "--workers", type=positive, default=usable_cores(), help="default: all cores"
    )
    parser.add_argument("--keep-text", action="store_true", help="keep tokens and subwords as text")
    parser.add_argument("--force", action="store_true", help="make an existing output anew")
    return parser


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def parser_for(description: str, defaults: translation.Recipe, downloads: bool) -> OneLineParser:
    """The arguments every translation corpus has."""
    parser = common_parser(description, downloads)
    parser.add_argument("--subwords", choices=subwords.KINDS, default=defaults.subwords)
    parser.add_argument("--size", type=positive, default=defaults.size, help="merges or pieces")
    parser.add_argument(
        "--max-tokens", type=int, default=defaults.max_tokens, help="longer training pairs go"
    )
    parser.add_argument(
        "--ratio",
        type=float,
        default=defaults.ratio,
        help="training pairs whose lengths differ more go; 0: none, default: %(default)s",
    )
    parser.add_argument(
        "--drop-leaked", action="store_true", help="drop training pairs that a held-out set has"
    )
    parser.add_argument("--shards", type=positive, default=1, help="parts of the training data")
    return parser


def recipe_of(
    args: argparse.Namespace, source_lang: str, target_lang: str, **more: Any
) -> translation.Recipe:
    """The recipe that the common arguments ask for."""
    return translation.Recipe(
        source_lang,
        target_lang,
        subwords=args.subwords,
        size=args.size,
        max_tokens=args.max_tokens,
        ratio=args.ratio,
        drop_leaked=args.drop_leaked,
        shards=args.shards,
        **more,
    )


def sources(remotes: Sequence[Remote], args: argparse.Namespace) -> dict[str, Path]:
    """Every file of the corpus, by name: from ``--from``, or downloaded."""
    if args.origin is None:
        return {remote.name: fetch(remote, args.downloads) for remote in remotes}
    found = {remote.name: args.origin / remote.name for remote in remotes}
    for path in found.values():
        if not path.is_file():
            raise PrepError(f"{path} does not exist")
    return found


def make(
    args: argparse.Namespace,
    arguments: dict[str, Any],
    files: Sequence[Path],
    build: Callable[[Path], dict[str, Any]],
    summary: Callable[[dict[str, Any], Path], str],
) -> None:
    """Make the output unless it is there, and print what became of the corpus.

    ``arguments`` are those that decide the output; ``build`` fills a folder and returns figures for
    the manifest; ``summary`` says them.
    """
    given = {**arguments, "keep_text": args.keep_text}
    manifest = make_output(args.out, given, files, build, args.force)
    if not manifest["fresh"]:
        print(f"{args.out} is complete already, nothing to do")
    print(summary(manifest, args.out))


def prepare_translation(
    args: argparse.Namespace,
    recipe: translation.Recipe,
    files: Sequence[Path],
    read: Callable[[], dict[str, tuple[translation.Pairs, Report]]],
) -> None:
    """``make`` for a parallel corpus."""

    def build(folder: Path) -> dict[str, Any]:
        return translation.prepare(read(), recipe, folder, args.workers, args.keep_text)

    make(args, asdict(recipe), files, build, translation.summary)


def main_of(run: Callable[[Sequence[str] | None], None]) -> Callable[..., int]:
    """A ``main`` that ends in one line where ``run`` cannot go on."""

    def main(argv: Sequence[str] | None = None) -> int:
        try:
            run(argv)
        except PrepError as error:
            print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nstopped; call again to start over", file=sys.stderr)
            return 130
        return 0

    return main
