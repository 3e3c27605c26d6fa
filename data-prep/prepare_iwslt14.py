"""Prepare IWSLT14 German-English: TED talks, 160,239 / 7,283 / 6,750 pairs with fairseq's recipe.

Example: stochattn-prepare iwslt14 --out data-bin/iwslt14
In a clone, python data-prep/prepare_iwslt14.py takes the same flags.

Tokens are lower-cased Moses tokens with 10,000 joint BPE merges. The BABN paper uses --size 14000.
--from FOLDER reads de-en.tgz from FOLDER instead of downloading. Every 23rd clean training pair
becomes part of the validation set. The test set consists of dev2010, dev2012 and tst2010 to
tst2012. No checksum is published for this archive.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from steps.command import main_of, parser_for, prepare_translation, recipe_of, source_files
from steps.fetch import Remote
from steps.lines import Report, TextFile, pair_up, read_lines, read_segments
from steps.translation import Recipe

REMOTE = Remote("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
HELD_OUT = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
METADATA_TAGS = ("<url>", "<talkid>", "<keywords>")
TITLE_TAGS = re.compile("</?(?:title|description)>")


def read_speech(file: TextFile, report: Report) -> Iterator[str | None]:
    """Yield the lines of the training text with titles and descriptions, but no other metadata."""
    for line in read_lines(file, report):
        if line is None:
            yield None
        elif not any(tag in line for tag in METADATA_TAGS):
            yield TITLE_TAGS.sub("", line)


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, Recipe(valid_every=23), downloads=True)
    parser.add_argument(
        "--source-lang",
        choices=("de", "en"),
        default="de",
        help="source language; the other one becomes the target language; default: %(default)s",
    )
    args = parser.parse_args(argv)
    target_lang = "en" if args.source_lang == "de" else "de"
    recipe = recipe_of(args, args.source_lang, target_lang, valid_every=23)
    archive = source_files([REMOTE], args)[REMOTE.name]

    def members(name: str) -> list[TextFile]:
        return [TextFile(archive, f"de-en/{name.format(lang=lang)}") for lang in recipe.languages]

    def read_test(report: Report) -> Iterator[tuple[str, str]]:
        for name in HELD_OUT:
            yield from read_segments(*members(f"IWSLT14.{name}.de-en.{{lang}}.xml"), report)

    def read() -> dict:
        train, test = Report(), Report()
        talks = pair_up(*members("train.tags.de-en.{lang}"), read_speech, train)
        return {"train": (talks, train), "test": (read_test(test), test)}

    prepare_translation(args, recipe, [archive], read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
