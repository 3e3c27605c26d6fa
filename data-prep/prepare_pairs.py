"""Prepare your own parallel corpus: files PREFIX.de and PREFIX.en (or .gz, .bz2, .xz) per split.

Example: stochattn-prepare pairs --out data-bin/mine --source-lang de --target-lang en
             --train corpus/train --valid corpus/valid --test corpus/test
In a clone, python data-prep/prepare_pairs.py takes the same flags.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from steps.command import main_of, parser_for, prepare_translation, recipe_of
from steps.errors import PrepError
from steps.lines import Report, TextFile, read_pairs
from steps.translation import SPLITS, Recipe


def find(prefix: str, language: str) -> Path:
    """Return the path of PREFIX.LANGUAGE, which may be compressed."""
    candidates = [Path(f"{prefix}.{language}{end}") for end in ("", ".gz", ".bz2", ".xz")]
    for path in candidates:
        if path.is_file():
            return path
    raise PrepError(f"{candidates[0]} does not exist, nor with .gz, .bz2 or .xz")


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, Recipe(), downloads=False)
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-lang",
            required=True,
            help=f"{side} language, which is also the suffix of its files, for example de",
        )
    for split in SPLITS:
        parser.add_argument(
            f"--{split}",
            metavar="PREFIX",
            required=split != "test",
            help=f"prefix of the two files of the {split} set",
        )
    parser.add_argument(
        "--raw", action="store_true", help="do not tokenise the text with Moses' rules"
    )
    parser.add_argument("--keep-case", action="store_true", help="do not convert to lower case")
    args = parser.parse_args(argv)
    recipe = recipe_of(
        args,
        args.source_lang,
        args.target_lang,
        moses=not args.raw,
        lowercase=not args.keep_case,
    )
    prefixes = {split: getattr(args, split) for split in SPLITS if getattr(args, split)}
    files = {s: [find(prefix, lang) for lang in recipe.languages] for s, prefix in prefixes.items()}

    def read() -> dict:
        corpus = {}
        for split, sides in files.items():
            report = Report()
            corpus[split] = read_pairs(*map(TextFile, sides), report), report
        return corpus

    prepare_translation(args, recipe, [path for sides in files.values() for path in sides], read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
