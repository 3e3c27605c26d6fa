"""Prepare Multi30k German-English: image captions, 29,000 / 1,014 / 1,000 pairs.

Example: stochattn-prepare multi30k --out data-bin/multi30k
In a clone, python data-prep/prepare_multi30k.py takes the same flags.

Tokens are lower-cased Moses tokens with 8,000 joint BPE merges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from steps.command import main_of, parser_for, prepare_translation, recipe_of, source_files
from steps.fetch import Remote
from steps.lines import Report, TextFile, read_pairs
from steps.translation import Recipe

ADDRESS = "https://github.com/multi30k/dataset/raw/master/data/task1/raw"
SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
SHA256 = {
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
REMOTES = [Remote(f"{ADDRESS}/{name}.gz", sha256) for name, sha256 in SHA256.items()]


def run(argv: Sequence[str] | None) -> None:
    defaults = Recipe(size=8_000, ratio=0)
    parser = parser_for(__doc__, defaults, downloads=True)
    parser.add_argument(
        "--source-lang",
        choices=("de", "en"),
        default="de",
        help="source language; the other one becomes the target language; default: %(default)s",
    )
    args = parser.parse_args(argv)
    target_lang = "en" if args.source_lang == "de" else "de"
    recipe = recipe_of(args, args.source_lang, target_lang)
    files = source_files(REMOTES, args)

    def read() -> dict:
        corpus = {}
        for split, name in SPLITS.items():
            report = Report()
            sides = (TextFile(files[f"{name}.{lang}.gz"]) for lang in recipe.languages)
            corpus[split] = read_pairs(*sides, report), report
        return corpus

    prepare_translation(args, recipe, list(files.values()), read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
