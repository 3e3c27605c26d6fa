"""Prepare WMT14 English-German: Europarl v7, Common Crawl and News Commentary, 4.5 million pairs.

Example: stochattn-prepare wmt14 --out data-bin/wmt14 --size 32000 --shards 8
In a clone, python data-prep/prepare_wmt14.py takes the same flags.

The recipe is fairseq's: normalised punctuation, Moses tokens with split dashes, case kept, 40,000
joint BPE merges, at most 250 subwords per side and a length ratio of at most 1.5. The validation
set is newstest2013, and the test set is newstest2014 (full, 3,003 pairs). fairseq's script uses
every 100th training pair for validation instead, as this script does with --valid-from-train.
--news-commentary v9 selects the version of 2014.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from steps.command import main_of, parser_for, prepare_translation, recipe_of, source_files
from steps.fetch import Remote
from steps.lines import Report, TextFile, read_pairs, read_segments
from steps.translation import Recipe

# The SHA-256 checksums are from TensorFlow Datasets, the MD5 checksum is from sacrebleu.
EUROPARL = Remote(
    "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = Remote(
    "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
NEWS_COMMENTARY = {
    "v9": Remote(
        "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
    ),
    "v12": Remote(
        "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        "2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
    ),
}
DEV = Remote(
    "http://data.statmt.org/wmt19/translation-task/dev.tgz",
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)
TEST = Remote("http://www.statmt.org/wmt14/test-full.tgz", "a8cd784e006feb32ac6f3d9ec7eb389a")
VALID_EVERY = 100  # with --valid-from-train, every 100th training pair is used for validation


def run(argv: Sequence[str] | None) -> None:
    defaults = Recipe(size=40_000, max_tokens=250)
    parser = parser_for(__doc__, defaults, downloads=True)
    parser.add_argument(
        "--source-lang",
        choices=("en", "de"),
        default="en",
        help="source language; the other one becomes the target language; default: %(default)s",
    )
    parser.add_argument(
        "--news-commentary",
        choices=NEWS_COMMENTARY,
        default="v12",
        help="version of News Commentary, default: %(default)s",
    )
    parser.add_argument(
        "--valid-from-train",
        action="store_true",
        help=f"use every {VALID_EVERY}th training pair for validation instead of newstest2013",
    )
    args = parser.parse_args(argv)
    recipe = recipe_of(
        args,
        args.source_lang,
        "de" if args.source_lang == "en" else "en",
        normalise=True,
        split_dashes=True,
        lowercase=False,
        clean_on="subwords",
        valid_every=VALID_EVERY if args.valid_from_train else 0,
    )
    news = NEWS_COMMENTARY[args.news_commentary]
    corpora = {
        EUROPARL: "training/europarl-v7.de-en",
        COMMON_CRAWL: "commoncrawl.de-en",
        news: f"training/news-commentary-{args.news_commentary}.de-en",
    }
    held_out = [TEST] if args.valid_from_train else [DEV, TEST]
    files = source_files([*corpora, *held_out], args)

    def sides(remote: Remote, source: str, target: str) -> list[TextFile]:
        names = zip((source, target), recipe.languages, strict=True)
        return [TextFile(files[remote.name], name.format(lang=lang)) for name, lang in names]

    def read_train(report: Report) -> Iterator[tuple[str, str]]:
        for remote, name in corpora.items():
            yield from read_pairs(*sides(remote, *[f"{name}.{{lang}}"] * 2), report)

    def read() -> dict:
        reports = {split: Report() for split in ("train", "valid", "test")}
        news2014 = "test-full/newstest2014-deen-{side}.{{lang}}.sgm"
        test = sides(TEST, news2014.format(side="src"), news2014.format(side="ref"))
        corpus = {
            "train": (read_train(reports["train"]), reports["train"]),
            "test": (read_segments(*test, reports["test"]), reports["test"]),
        }
        if not args.valid_from_train:
            valid = sides(DEV, *["dev/newstest2013.{lang}"] * 2)
            corpus["valid"] = read_pairs(*valid, reports["valid"]), reports["valid"]
        return corpus

    prepare_translation(args, recipe, list(files.values()), read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
